"""The build of a BM25 index in a process that is killed."""

import subprocess
import sys


def test_a_killed_build_leaves_no_index(tmp_path):
    """A process killed in mid-build leaves nothing under the index's name."""
    code = (
        "import os, sys; from ragbandit.strategies.base import Passage\n"
        "from ragbandit.strategies.retrievers.bm25 import build_index\n"
        "def rows():\n"
        "    yield Passage(id='a', title='t', text='x')\n"
        "    os._exit(9)\n"
        f"build_index(rows(), {str(tmp_path / 'i')!r})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert not (tmp_path / "i").exists()
