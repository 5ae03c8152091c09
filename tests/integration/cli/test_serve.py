"""`ragbandit serve` as a process: it says when it listens, and ends cleanly."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.serving.setup.requirements import lock_store
from tests.support import command
from tests.support.waiting import until


def test_serve_refuses_a_port_that_is_taken(tmp_path, monkeypatch):
    """Where something listens already, `serve` ends with exit code 2 and the setting's name, not a server's error."""
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing}\n")
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("RAGBANDIT_SERVER__PORT", str(taken.getsockname()[1]))
        done = command.run("serve")
    assert done.exit_code == 2
    assert "CONFIG_INVALID server.port" in done.stderr


def test_one_service_for_a_sqlite_folder(tmp_path, monkeypatch):
    """A second `serve` on a SQLite folder, whatever its port, names the process and the address of the first."""
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing}\n")
    monkeypatch.chdir(tmp_path)
    open_database(load("config.yaml").settings).close()
    with lock_store(load("config.yaml").settings, at="http://127.0.0.1:8100"):
        done = command.run("serve", "--port", "18999")
    assert done.exit_code == 2
    assert (
        f"CONFIG_INVALID data_dir: another `ragbandit serve` runs on this folder: process {os.getpid()}, "
        in done.stderr
    )


def test_serve_says_where_it_listens_and_ends_while_clients_wait(tmp_path):
    """It logs its address, and requests if asked. At SIGTERM clients that wait for answers get their 202, those that
    hung up hold nothing up, and it ends.
    """
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing}\nserver: {access_log: true}\n")
    open_database(Settings(data_dir=str(tmp_path / ".ragbandit"))).close()
    command = [sys.executable, "-m", "ragbandit", "serve", "--port", "0", "--host", "127.0.0.1"]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    body = b'{"question": "Who wrote Dracula?"}'
    head = b"POST /v1/answer?wait_s=600 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n"
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=out, stderr=subprocess.PIPE, text=True) as serving,
    ):
        try:
            lines = iter(serving.stderr.readline, "")
            address = re.compile(r"listening on (http://127.0.0.1:(\d+))")
            url, port = next(found.groups() for line in lines if (found := address.search(line)))
            assert httpx.get(f"{url}/health").json() == {"status": "ok"}
            links = [socket.create_connection(("127.0.0.1", int(port)), 20) for _ in range(100)]
            for link in links:
                link.sendall(head % len(body) + body)
            until(lambda: httpx.get(f"{url}/v1/status").json()["counters"]["decided"] == 100)
            for link in links[:50]:
                link.close()
        finally:
            serving.send_signal(signal.SIGTERM)
            began = time.monotonic()
            serving.communicate(timeout=30)
    assert time.monotonic() - began < 8
    assert serving.returncode in (0, -signal.SIGTERM)
    assert '"GET /health HTTP/1.1" 200' in (tmp_path / "out").read_text()
    replies = [link.recv(65536) for link in links[50:]]
    for link in links:
        link.close()
    assert all(reply.startswith(b"HTTP/1.1 202 ") and b'"status":"pending"' in reply for reply in replies), replies
