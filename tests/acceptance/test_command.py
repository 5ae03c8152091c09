"""The command as a person uses it: installed from the wheel, started with `up`, ended with ctrl-C."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.service_process import free_port
from ragbandit.client import Client
from ragbandit.shared.errors import RagBanditError
from ragbandit.strategies.retrievers.bm25 import build_index

from .conftest import PASSAGES, ROOT


@pytest.mark.timeout(120)
def test_up_and_ctrl_c(tmp_path):
    """`ragbandit up` serves an answer, restarts each of its four children, takes over other arms on SIGHUP but not from
    a broken file, which its children survive being killed beside, and ctrl-C leaves no process behind.
    """
    port = free_port()
    (tmp_path / "corpus.jsonl").write_text(
        "\n".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in PASSAGES)
    )
    (tmp_path / "config.yaml").write_text(
        json.dumps(
            {
                "data_dir": str(tmp_path / "data"),
                "encoder": {"model": "hashing"},
                "generator": {"name": "scripted"},
                "server": {"port": port},
            }
        )
    )
    command = [sys.executable, "-m", "ragbandit"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = {"cwd": tmp_path, "env": environment, "timeout": 60}
    subprocess.run([*command, "index", "build", "--corpus", "corpus.jsonl"], check=True, capture_output=True, **run)
    with (tmp_path / "up.log").open("wb") as output:
        up = subprocess.Popen([*command, "up"], cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        answer = _answer(command, run, port, up, tmp_path)
        assert answer["status"] == "answered"
        assert answer["answer"] == "scripted"
        for victim in _children(up.pid):  # Redis, service, answer worker, learner: each in turn
            os.kill(victim, signal.SIGKILL)
            _wait(lambda gone=victim: gone not in _children(up.pid) and len(_children(up.pid)) == 4)
        again = _asked(port, up, tmp_path)
        assert again["status"] == "answered"
        assert len(again["pmf"]) == 3
        tree = json.loads((tmp_path / "config.yaml").read_text()) | {"arms": {"single_step": {}}}
        (tmp_path / "config.yaml").write_text(json.dumps(tree))
        up.send_signal(signal.SIGHUP)
        _wait(lambda: _offered(port) == {"single_step"})
        assert _asked(port, up, tmp_path)["status"] == "answered"
        (tmp_path / "config.yaml").write_text("arms: [")
        up.send_signal(signal.SIGHUP)
        log = tmp_path / "up.log"
        _wait(lambda: "the new configuration cannot be used" in log.read_text())
        for victim in _children(up.pid):
            with contextlib.suppress(ProcessLookupError):  # a worker that has just handed over to its successor
                os.kill(victim, signal.SIGKILL)
            _wait(lambda gone=victim: gone not in _children(up.pid) and len(_children(up.pid)) == 4)
        after = _asked(port, up, tmp_path)
        assert (after["status"], set(after["pmf"])) == ("answered", {"single_step"})
        assert "the arms of the new configuration are in use action=offer arms=single_step" in log.read_text()
        killed = "answer-1 was killed (SIGKILL; out of memory?); restarting; log: "
        assert f"{killed}{tmp_path}/data/logs/answer-1.log" in log.read_text()
        children = _children(up.pid)
    finally:
        up.send_signal(signal.SIGINT)
        code = up.wait(30)
    assert code == 0
    assert [pid for pid in children if Path(f"/proc/{pid}/stat").exists()] == []


@contextlib.contextmanager
def _ready(port, up, folder):
    """A client, as soon as the service is ready."""
    give_up = time.monotonic() + 40
    with Client(f"http://127.0.0.1:{port}") as client:
        while not client.ready():
            assert up.poll() is None, (folder / "up.log").read_text()
            assert time.monotonic() < give_up, (folder / "up.log").read_text()
            time.sleep(0.05)
        yield client


def _asked(port, up, folder):
    """The reply to a question."""
    with _ready(port, up, folder) as client:
        return client.answer("Capital of France?", wait_s=30)


def _answer(command, run, port, up, folder):
    """What the command prints for a question."""
    with _ready(port, up, folder):
        pass
    asked = [*command, "answer", "Capital of France?", "--url", f"http://127.0.0.1:{port}", "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, **run)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _offered(port) -> set[str]:
    """The arms that a question can have now; none while there is no service."""
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            return set(client.route("Capital of France?")["pmf"])
    except RagBanditError:
        return set()


def _wait(done, *, timeout_s: float = 30) -> None:
    give_up = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(60)
def test_killed_up_leaves_nothing(tmp_path):
    """When `up` itself is killed, service, workers and Redis end by themselves."""
    port = free_port()
    build_index(PASSAGES, tmp_path / "data" / "indexes" / "default")
    tree = {"data_dir": str(tmp_path / "data"), "encoder": {"model": "hashing"}, "generator": {"name": "scripted"}}
    (tmp_path / "config.yaml").write_text(json.dumps(tree | {"server": {"port": port}}))
    command = [sys.executable, "-m", "ragbandit", "up"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (tmp_path / "up.log").open("wb") as output:
        up = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output)
    with _ready(port, up, tmp_path):
        children = _children(up.pid)

    up.kill()
    up.wait(10)

    assert len(children) == 4
    _wait(lambda: not any(_runs(pid) for pid in children))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
