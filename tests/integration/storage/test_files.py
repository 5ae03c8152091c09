"""Files of cached arrays on a disk that fills up."""

import subprocess
import sys


def test_full_disk_is_a_warning(tmp_path):
    """A write that breaks off in the middle costs a line in the log, and leaves no half a file."""
    code = (
        "import resource, signal, sys, pathlib, numpy\n"
        "from ragbandit.shared.files.atomic import cached_arrays\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "made = cached_arrays('things', 'a' * 64, build=lambda: {'x': numpy.ones(9999)}, cache=folder)\n"
        "print(made['x'].sum())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == "9999.0\n"
    assert "cannot be written to the cache" in run.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
