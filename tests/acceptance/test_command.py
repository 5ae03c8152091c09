"""The command as a person uses it: started with `up`, ended with ctrl-C."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks.service_process import free_port
from ragbandit.strategies.retrievers.bm25 import build_index
from tests.support import command

from .conftest import PASSAGES, children_of, client_of_up, running_up, until


@pytest.mark.timeout(400)  # four processes start twice, on a machine that may be busy
def test_up_and_ctrl_c(tmp_path):
    """`ragbandit up` serves an answer, restarts each of its four children beside a file that was broken meanwhile, and
    ctrl-C leaves no process behind.
    """
    port, log = free_port(), tmp_path / "up.log"
    build_index(PASSAGES, tmp_path / "data" / "indexes" / "default")
    tree = {
        "data_dir": str(tmp_path / "data"),
        "encoder": {"model": "hashing"},
        "generator": {"name": "scripted"},
        "server": {"port": port},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    with running_up(tmp_path) as up:
        with client_of_up(up, port=port, folder=tmp_path):
            question = ["answer", "Capital of France?", "--url", f"http://127.0.0.1:{port}", "--json"]
            answer = json.loads(command.run(*question).stdout)
        assert (answer["status"], answer["answer"], len(answer["pmf"])) == ("answered", "scripted", 3)
        (tmp_path / "config.yaml").write_text("arms: [")
        for victim in children_of(up.pid):  # Redis, service, answer worker, learner: each in turn
            with contextlib.suppress(ProcessLookupError):  # one that has just ended for a successor
                os.kill(victim, signal.SIGKILL)
            until(lambda gone=victim: gone not in children_of(up.pid) and len(children_of(up.pid)) == 4)
        with client_of_up(up, port=port, folder=tmp_path) as client:
            again = client.answer("Capital of France?", wait_s=30)
        assert (again["status"], len(again["pmf"])) == ("answered", 3)
        killed = "answer-1 was killed (SIGKILL; out of memory?); restarting; log: "
        assert f"{killed}{tmp_path}/data/logs/answer-1.log" in log.read_text()
        children = children_of(up.pid)
    assert up.returncode == 0
    assert [pid for pid in children if Path(f"/proc/{pid}/stat").exists()] == []
