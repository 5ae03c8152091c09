"""New folders of indexes: what builds leave that were killed."""

import subprocess
import sys

from ragbandit.strategies.retrievers.folders import new_index

BUILD = """
import pathlib, sys, time
from ragbandit.strategies.retrievers.folders import new_index
with new_index(pathlib.Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    print("begun", flush=True)
    time.sleep(60)
"""


def test_a_build_removes_what_killed_builds_left(tmp_path):
    """A later build of the same index removes the folder of one that was killed, and leaves those that run."""
    target = tmp_path / "my [index]"
    processes = []
    for name in (target, target, tmp_path / "another"):
        one = subprocess.Popen([sys.executable, "-c", BUILD, str(name)], stdout=subprocess.PIPE)
        processes.append(one)
        assert one.stdout.readline() == b"begun\n"
    killed, running, other = processes
    killed.kill()
    killed.wait(10)
    try:
        with new_index(target) as folder:
            (folder / "index.json").touch()
            assert {path.name.rpartition("-")[2] for path in tmp_path.glob(".*.building-*")} == {
                folder.name.rpartition("-")[2],
                str(running.pid),
                str(other.pid),
            }
        assert [path.name for path in target.iterdir()] == ["index.json"]
    finally:
        for one in processes:
            one.kill()
            one.wait(10)
            one.stdout.close()
