"""The command as a person uses it: installed from the wheel, started with `up`, ended with ctrl-C."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.service_process import free_port
from ragbandit.client import Client
from ragbandit.shared.errors import RagBanditError
from ragbandit.strategies.retrievers.bm25 import build_index

from .conftest import PASSAGES, ROOT, client_of_up, running_up, until


@pytest.mark.timeout(120)
def test_up_and_ctrl_c(tmp_path):
    """`ragbandit up` serves an answer, restarts each of its four children, takes over other arms on SIGHUP but not from
    a broken file, which its children survive being killed beside, and ctrl-C leaves no process behind.
    """
    port, command = free_port(), [sys.executable, "-m", "ragbandit"]
    (tmp_path / "corpus.jsonl").write_text(
        "\n".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in PASSAGES)
    )
    tree = configured(tmp_path, port)
    run = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "timeout": 60}
    subprocess.run([*command, "index", "build", "--corpus", "corpus.jsonl"], check=True, capture_output=True, **run)
    log = tmp_path / "up.log"

    def answered():
        with client_of_up(up, port=port, folder=tmp_path) as client:
            answer = client.answer("Capital of France?", wait_s=30)
        assert answer["status"] == "answered"
        return set(answer["pmf"])

    def kill_each():
        """Redis, service, answer worker, learner: each in turn."""
        for victim in _children(up.pid):
            with contextlib.suppress(ProcessLookupError):  # a worker that has just handed over to its successor
                os.kill(victim, signal.SIGKILL)
            until(lambda gone=victim: gone not in _children(up.pid) and len(_children(up.pid)) == 4)

    with running_up(tmp_path) as up:
        with client_of_up(up, port=port, folder=tmp_path):
            asked = [*command, "answer", "Capital of France?", "--url", f"http://127.0.0.1:{port}", "--json"]
            done = subprocess.run(asked, capture_output=True, text=True, **run)
        assert done.returncode == 0, done.stderr
        assert {**json.loads(done.stdout), "status": "answered", "answer": "scripted"} == json.loads(done.stdout)
        kill_each()
        assert len(answered()) == 3
        (tmp_path / "config.yaml").write_text(json.dumps(tree | {"arms": {"single_step": {}}}))
        up.send_signal(signal.SIGHUP)
        until(lambda: _offered(port) == {"single_step"})
        assert answered() == {"single_step"}
        (tmp_path / "config.yaml").write_text("arms: [")
        up.send_signal(signal.SIGHUP)
        until(lambda: "the new configuration cannot be used" in log.read_text())
        kill_each()
        assert answered() == {"single_step"}
        assert "the arms of the new configuration are in use action=offer arms=single_step" in log.read_text()
        killed = "answer-1 was killed (SIGKILL; out of memory?); restarting; log: "
        assert f"{killed}{tmp_path}/data/logs/answer-1.log" in log.read_text()
        children = _children(up.pid)
    assert up.returncode == 0
    assert [pid for pid in children if Path(f"/proc/{pid}/stat").exists()] == []


def configured(folder, port):
    """A configuration in this folder, for the embedded service with scripted answers."""
    tree = {"data_dir": str(folder / "data"), "encoder": {"model": "hashing"}, "generator": {"name": "scripted"}}
    tree["server"] = {"port": port}
    (folder / "config.yaml").write_text(json.dumps(tree))
    return tree


def _offered(port) -> set[str]:
    """The arms that a question can have now; none while there is no service."""
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            return set(client.route("Capital of France?")["pmf"])
    except RagBanditError:
        return set()


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(60)
def test_killed_up_leaves_nothing(tmp_path):
    """When `up` itself is killed, service, workers and Redis end by themselves."""
    port = free_port()
    build_index(PASSAGES, tmp_path / "data" / "indexes" / "default")
    configured(tmp_path, port)
    with running_up(tmp_path) as up:
        with client_of_up(up, port=port, folder=tmp_path):
            children = _children(up.pid)
        up.kill()
        up.wait(10)
    assert len(children) == 4
    until(lambda: not any(_runs(pid) for pid in children), seconds=30)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
