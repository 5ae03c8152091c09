"""The supervisor of `ragbandit up`: real processes that end, die and start again, and the configuration they read."""

import os
import signal
import sys
import time

import pytest

from ragbandit.router.config.loading import load
from ragbandit.router.queue import redis_server
from ragbandit.router.serving.setup.requirements import lock_file, lock_store
from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.processes import supervised_process
from ragbandit.shared.processes.child_process import ChildProcess, end_children
from ragbandit.shared.processes.supervised_process import SupervisedProcess
from ragbandit.shared.processes.this_process import LASTING_FAILURE
from ragbandit.workers.processes.supervisor import Supervisor
from tests.support.waiting import until

#: prints the times of its SIGTERMs, and ends after this many (0: never)
CODE = """
import signal, sys, time
often, times = int(sys.argv[1]), []
def note(*_):
    times.append(time.monotonic())
    print(times[-1], flush=True)
signal.signal(signal.SIGTERM, note)
print(0.0, flush=True)
while len(times) != often or not often:
    time.sleep(0.01)
"""


@pytest.fixture
def make_child(tmp_path):
    """Returns a function that starts a child, which ends after this many SIGTERMs."""
    children = []

    def start(often):
        name = f"answer-{len(children)}"
        child = ChildProcess(name, command=[sys.executable, "-c", CODE, str(often)], log_file=tmp_path / name)
        children.append(child)
        child.start()
        until(lambda: child.log_file.read_text())
        return child

    yield start
    for child in children:
        child.kill()


def term_times(child):
    return [float(line) for line in child.log_file.read_text().split()][1:]


def test_children_are_told_at_once_and_twice(make_child, caplog):
    """All children get SIGTERM together; the remaining ones get it again, and are killed in the end."""
    children = [make_child(often) for often in (0, 2, 1)]
    began = time.monotonic()
    end_children(children, drain_s=1.5, cut_off_s=1.5)
    assert time.monotonic() - began >= 3.0
    assert [child.process.returncode for child in children] == [-9, 0, 0]
    assert [len(term_times(child)) for child in children] == [2, 2, 1]
    assert max(term_times(child)[0] for child in children) - began < 1.5
    assert [record.child for record in caplog.records] == ["answer-0"]


# ------------------------------------------------------------------------------------------ children that die


def supervised(folder, script):
    """A child whose processes are this shell script; the first one runs."""
    child = SupervisedProcess("answer-1", command=["/bin/sh", "-c", script], log_folder=folder)
    child.log_file.write_text("ERROR of yesterday\n")
    child.start()
    return child


def die(child, caplog, *, until):
    """Tend the child until this many deaths are logged; pauses are skipped."""
    while len(caplog.records) < until:
        child.process.wait(10)
        child._due = min(child._due, time.monotonic())
        child.restart_if_dead()
    child.process.wait(10)


def test_a_death_says_where_and_why(tmp_path, caplog):
    """The line on a child that died names its log and the last lines in it, of this life and not of an earlier one."""
    script = f"cd {tmp_path}; [ -e once ] && exit 3; touch once; echo loading; echo generator.model: gone; echo; exit 2"
    die(supervised(tmp_path, script), caplog, until=2)
    one, two = caplog.records
    log = tmp_path / "answer-1.log"
    assert (one.levelname, one.child, one.code) == ("WARNING", "answer-1", 2)
    assert one.getMessage() == (
        f"answer-1 exited with status 2; last lines: loading | generator.model: gone; restarting; log: {log}"
    )
    assert two.getMessage() == f"answer-1 exited with status 3; it has logged nothing; restarting; log: {log}"


def test_a_child_that_would_end_again_is_not_started_again(tmp_path, caplog):
    """The status of an end that no other start would mend ends the supervisor with the child's last lines."""
    child = supervised(tmp_path, f"echo the database is malformed; exit {LASTING_FAILURE}")
    child.process.wait(10)
    with pytest.raises(NotReady, match="the database is malformed"):
        child.restart_if_dead()
    assert (child.restarts, [record.levelname for record in caplog.records]) == (0, ["ERROR"])


def test_a_child_that_does_not_stay_up_is_said_plainly(tmp_path, monkeypatch, caplog):
    """The third death in a row is an error with file and reason; after a long life the count restarts at 0."""
    child = supervised(tmp_path, "echo no key; exit 2")
    die(child, caplog, until=4)
    monkeypatch.setattr(supervised_process, "STEADY_S", -1.0)
    die(child, caplog, until=5)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR", "WARNING", "WARNING"]
    assert caplog.records[2].getMessage() == (
        "answer-1 exited with status 2; last lines: no key; 3 times in a row, so it may not come up without help; "
        f"log: {child.log_file}"
    )
    assert child._deaths == 1


# ------------------------------------------------------------------------------------------ what was accepted


@pytest.fixture
def make_supervisor(tmp_path, monkeypatch):
    """A function that makes a Supervisor of a file's text, none of whose children run; it has handed its file on."""
    monkeypatch.chdir(tmp_path)

    def make(text, **environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        if text is not None:
            (tmp_path / "config.yaml").write_text(text)
        made = Supervisor(load(None))
        made._write_config()
        return made

    return make


ACCEPTED = ".ragbandit/accepted.yaml"
TEXT = "generator: {name: scripted}\narms: {no_retrieval: , single_step: {passages: 3}}\n"


def test_children_read_what_was_accepted(make_supervisor, tmp_path):
    """Every child is given a copy of the file, for its owner's eyes, that gives the same settings as the file."""
    made = make_supervisor(TEXT)
    assert {tuple(child.command[-2:]) for child in made.children} == {("--config", ACCEPTED)}
    assert load(ACCEPTED).settings == load("config.yaml").settings == made.settings
    assert (tmp_path / ACCEPTED).stat().st_mode & 0o777 == 0o600
    assert str(tmp_path / "config.yaml") in (tmp_path / ACCEPTED).read_text().splitlines()[0]


def test_a_refused_up_leaves_the_running_one_alone(make_supervisor, tmp_path):
    """A second `up` on a folder is refused, and takes neither Redis nor its socket away from the first one."""
    first, second = make_supervisor(TEXT), make_supervisor(TEXT)
    lock = tmp_path / ".ragbandit" / "up.lock"
    with lock_file(lock, process="ragbandit up", at="http://127.0.0.1:8100", field="data_dir"):
        first.redis.start()
        try:
            with pytest.raises(
                ConfigError, match=rf"runs on this folder: process {os.getpid()}, http://127.0.0.1:8100"
            ):
                second.start()
            second.stop()
            assert first.redis.is_answering()
        finally:
            first.redis.stop()


def test_up_beside_a_service_is_refused(make_supervisor):
    """`up` on a SQLite folder that a `serve` of its own holds is refused before any child starts."""
    made = make_supervisor(TEXT)
    try:
        with lock_store(made.settings, at="http://127.0.0.1:8100"):
            named = rf"another `ragbandit serve` runs on this folder: process {os.getpid()}, http://127.0.0.1:8100"
            with pytest.raises(ConfigError, match=named):
                made.start()
    finally:
        made.stop()
    assert all(child.death is None for child in made.children)


@pytest.mark.parametrize("fault", ["socket", "hangs"])
def test_a_redis_that_does_not_answer_is_started_again(make_supervisor, monkeypatch, caplog, fault):
    """A Redis whose socket is gone, or that hangs, is replaced once it has not answered for a while, which is said."""
    monkeypatch.setattr(redis_server, "LOOK_S", 0.0)
    made = make_supervisor(TEXT)
    made.redis.start()
    first = made.redis.process.pid
    try:
        made._tend()
        assert made.redis.process.pid == first
        if fault == "socket":
            made.redis.socket.unlink()
        else:
            os.kill(first, signal.SIGSTOP)
        made._tend()
        assert made.redis.process.pid == first  # it may be slow
        monkeypatch.setattr(redis_server, "MISSES", 2)
        monkeypatch.setattr(redis_server, "STOP_S", 0.1)  # a stopped process is killed
        made._tend()
        assert made.redis.process.pid != first
        assert made.redis.is_answering()
    finally:
        made.redis.stop()
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "redis does not answer at" in error.getMessage()
    assert "nothing is lost" in error.getMessage()
