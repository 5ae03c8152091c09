"""`ragbandit serve` with several processes: one port, one encoder, metrics of all, and deaths that callers survive."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from ragbandit.workers.cli import app
from tests.support.tiny_models import tiny_encoder

from .conftest import until

BODY = {"question": "Who wrote Dracula?"}


def children(pid):
    """Kind and number -> pid of the processes of a service."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            place = re.search(rb'"kind": "(\w+)", "number": (\d)', Path(f"/proc/{child}/environ").read_bytes())
        except OSError:
            continue
        if place:
            found[place[1].decode() + (place[2].decode() if place[1] == b"router" else "")] = int(child)
    return found


def asked(url):
    """The status of a question on a connection of its own; 0 where the connection was cut."""
    try:
        response = httpx.post(f"{url}/v1/route", json=BODY, timeout=30)
    except httpx.TransportError:
        return 0
    assert response.status_code != 503 or response.headers["retry-after"] == "1"
    return response.status_code


def test_processes(tmp_path):
    """Both routers answer on one port with one encoder, a scrape has the metrics of both, and killed processes come
    back: meanwhile callers get 503 with Retry-After, or the other router. SIGTERM ends all of them.
    """
    settings = {
        "encoder": {"model": tiny_encoder(), "dimension": 16, "max_tokens": 40},
        "server": {"processes": 2, "port": 0},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    log = (tmp_path / "log").open("w")
    command = [sys.executable, "-m", "ragbandit", "serve"]
    serving = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:

        def listening():
            return re.findall(r"listening on (http://127.0.0.1:\d+)", (tmp_path / "log").read_text())

        until(lambda: len(listening()) == 2 or serving.poll() is not None)
        (url,) = set(listening())
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: asked(url), range(40))) == {200}
        assert served(url) == {"0", "1"}
        before = children(serving.pid)
        assert set(before) == {"encoder", "router0", "router1"}

        os.kill(before["encoder"], signal.SIGKILL)
        until(lambda: asked(url) == 503)
        until(lambda: asked(url) == 200)

        os.kill(before["router0"], signal.SIGKILL)
        until(lambda: asked(url) == 200)
        after = until(lambda: len(listening()) == 3 and children(serving.pid))
        assert after["router1"] == before["router1"]
        assert not {after["encoder"], after["router0"]} & set(before.values())
        assert httpx.get(f"{url}/v1/status").json()["balanced"]

        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in after.values()))
    finally:
        serving.kill()
        serving.wait(10)
        log.close()


def served(url):
    """The processes that have answered questions, as one scrape tells; all of them reply to it."""
    families = {found.name: found for found in text_string_to_metric_families(httpx.get(f"{url}/metrics").text)}
    up = {sample.labels["process"]: sample.value for sample in families["ragbandit_process_up"].samples}
    assert up == {"0": 1.0, "1": 1.0}
    decided = [s for s in families["ragbandit_decisions"].samples if s.name == "ragbandit_decisions_total"]
    assert sum(sample.value for sample in decided) == 40
    assert [s.labels for s in families["ragbandit_ledger"].samples if s.labels["place"] == "decided"] == [
        {"place": "decided"}
    ]
    return {sample.labels["process"] for sample in decided}


def test_what_cannot_start_ends_the_service(tmp_path, capfd, caplog):
    """If a process cannot start, `serve` says so and ends; nothing is left."""
    tree = {
        "encoder": {"model": "hashing"},
        "server": {"processes": 2, "port": 0},
        "database_url": "postgresql+psycopg://nobody@127.0.0.1:9/none",
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    signals = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    try:
        done = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "config.yaml")])
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
    assert done.exit_code == 3
    assert "did not start" in caplog.text
    assert "STORE_UNAVAILABLE" in capfd.readouterr().err
    assert children(os.getpid()) == {}
