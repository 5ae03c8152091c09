"""Memory of the C library in processes of the command."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, sys, threading
from ragbandit.workers import cli

def many_threads():
    barrier = threading.Barrier(8)
    def work():
        kept = ctypes.CDLL(None).malloc(1000)
        barrier.wait()
    threads = [threading.Thread(target=work) for _ in range(8)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)

cli.app = many_threads
cli.main()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(("environment", "heaps"), [({}, 2), ({"MALLOC_ARENA_MAX": "3"}, 3)])
def test_threads_share_heaps(tmp_path, environment, heaps):
    """The threads of a process of the command share two heaps of the C library, or as many as the environment says."""
    inherited = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    file = tmp_path / "heaps.xml"
    subprocess.run([sys.executable, "-c", PROGRAM, file], env=inherited | environment, check=True)
    assert file.read_text().count("<heap ") == heaps
