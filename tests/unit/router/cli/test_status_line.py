"""The output of `ragbandit status --line`, and the modules that the command loads."""

import json
import os
import subprocess
import sys
import time

import pytest

from ragbandit.router.cli import status_line

RUN = (
    "import json, sys; sys.argv[1:] = json.loads(sys.argv[1]); from ragbandit.workers.entry import main; main(); "
    "print(sorted({'numpy', 'torch', 'typer', 'pydantic', 'sqlalchemy', 'yaml'} & {*sys.modules}))"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Lines are kept in a folder of the test, and no process is started that makes one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    started = []
    monkeypatch.setattr(status_line, "Popen", lambda command, **_: started.append(command))
    return started


def test_it_loads_neither_numpy_nor_torch(tmp_path):
    """In a fresh process the line is printed without numpy, torch, the parser of commands, settings and a database."""
    status_line.store_line("cheap 78 %, dear 22 %", file=status_line.line_file("mine.yaml", label=None))
    arguments = json.dumps(["status", "--line", "-c", "mine.yaml"])
    done = subprocess.run([sys.executable, "-c", RUN, arguments], capture_output=True, text=True, env=os.environ)
    assert (done.stdout.splitlines(), done.stderr) == (["cheap 78 %, dear 22 %", "[]"], "")


def test_an_old_line_starts_one_process(cache, tmp_path):
    """A line older than five minutes is printed with its age, and `ragbandit status` is started once in a minute."""
    file = status_line.line_file(None, label="other")
    status_line.store_line("cheap 78 %", file=file)
    assert status_line.stored_line(None, label="other") == "cheap 78 %"
    assert cache == []
    file.write_text(json.dumps({"line": "cheap 78 %", "made_at": time.time() - 7200.0}))
    assert {status_line.stored_line(None, label="other") for _ in range(3)} == {"cheap 78 % (2 h ago)"}
    (command,) = cache
    assert command[2:] == ["ragbandit", "status", "--json", "--label", "other"]


def test_without_a_line(cache):
    """The first call says that the line is being made; if none comes, the next call names the command that says why."""
    assert status_line.stored_line(None, label=None) == "RagBandit: the line is being made"
    assert "`ragbandit status` says why" in status_line.stored_line(None, label=None)
    assert len(cache) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["status"], ["report", "--line"], ["status", "--line", "--json"], ["status", "--line", "-c"]]
)
def test_other_commands_go_to_the_parser(arguments):
    """Only `status --line`, with --config and --label and their values, is answered before the parser is loaded."""
    assert status_line.line_of_command(arguments) is None
    assert status_line.line_of_command(["status", "--label", "a", "--line", "--config", "b"]) is not None


def test_each_store_has_a_line_of_its_own():
    """Another file, ledger or database has another line; other variables of the environment change nothing."""
    files = {
        status_line.line_file(config, label=label, environ=environ)
        for config in (None, "b.yaml")
        for label in (None, "x")
        for environ in ({}, {"DATABASE_URL": "postgresql://db"}, {"HOME": "/root"})
    }
    assert len(files) == 8
