"""How `ragbandit up` ends its children: real processes, told together, told twice, and killed at last."""

import subprocess
import sys
import time

import pytest

from workers.supervisor import Child, end

#: notes when it is told to end, and ends when it was told so often (0: never)
CODE = """
import signal, sys, time
often, notes = int(sys.argv[1]), open(sys.argv[2], "a", buffering=1)
def told(*_):
    told.times += 1
    print(time.monotonic(), file=notes)
told.times = 0
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
while told.times != often or not often:
    time.sleep(0.01)
"""


@pytest.fixture
def make_child(tmp_path):
    """A function that starts a child which ends when it was told so often, and gives it."""
    made = []

    def start(often):
        child = Child(f"answer-{len(made)}", arguments=[], log_folder=tmp_path)
        child.log_file.touch()
        child.process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(often), str(child.log_file)], stdout=subprocess.PIPE
        )
        made.append(child)
        assert child.process.stdout.readline() == b"ready\n"
        return child

    yield start
    for child in made:
        child.process.kill()
        child.process.wait(10)
        child.process.stdout.close()


def told(child):
    return [float(line) for line in child.log_file.read_text().split()]


def test_children_are_told_at_once_and_twice(make_child, caplog):
    """All are told together; who is still there is told again, and killed if that does not help either."""
    children = [make_child(often) for often in (0, 2, 1)]
    began = time.monotonic()
    end(children, drain_s=0.4, cut_off_s=0.6)
    assert 1.0 <= time.monotonic() - began < 5.0
    assert [child.process.returncode for child in children] == [-9, 0, 0]
    assert [len(told(child)) for child in children] == [2, 2, 1]
    assert max(told(child)[0] for child in children) - began < 0.3
    assert [record.child for record in caplog.records] == ["answer-0"]


def test_children_that_end_are_not_waited_for(make_child):
    """When all have ended nobody waits any longer, and children that never started are no trouble."""
    children = [make_child(1), make_child(1)]
    began = time.monotonic()
    end([*children, Child("late", arguments=[], log_folder=children[0].log_file.parent)], drain_s=20, cut_off_s=20)
    assert time.monotonic() - began < 5
    assert [child.process.returncode for child in children] == [0, 0]


def test_a_renewed_child_is_told_once(make_child):
    """A child that is being renewed is not told a second time, by a second renewal or an end, before its time is up."""
    child = make_child(2)
    child.renew()
    give_up = time.monotonic() + 10
    while not told(child):  # signals that come together are one
        assert time.monotonic() < give_up
    child.renew()
    time.sleep(0.1)
    end([child], drain_s=0.3, cut_off_s=5.0)
    first, second = told(child)
    assert second - first > 0.35
    assert child.process.returncode == 0
