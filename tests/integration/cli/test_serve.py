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


def test_serve_says_where_it_listens(tmp_path):
    """Once it accepts connections `serve` logs its address; a request there is answered, and logged if asked."""
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing}\nserver: {access_log: true}\n")
    command = [sys.executable, "-m", "ragbandit", "serve", "--port", "0", "--host", "127.0.0.1"]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            lines = iter(serving.stderr.readline, "")
            found = next(found for line in lines if (found := re.search(r"listening on (http://127.0.0.1:\d+)", line)))
            assert httpx.get(f"{found[1]}/health").json() == {"status": "ok"}
        finally:
            serving.send_signal(signal.SIGINT)
            out, _ = serving.communicate(timeout=20)
    assert '"GET /health HTTP/1.1" 200' in out
    assert serving.returncode in (0, -signal.SIGINT)


def test_serve_refuses_a_port_that_is_taken(tmp_path):
    """Where something listens already, `serve` ends with exit code 2 and the setting's name, not a server's error."""
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing}\n")
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "ragbandit", "serve", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    assert "CONFIG_INVALID server.port" in done.stderr


def test_serve_ends_while_clients_wait(tmp_path):
    """At SIGTERM clients that wait for answers get their 202, those that hung up hold nothing up, and `serve` ends."""
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing}\n")
    command = [sys.executable, "-m", "ragbandit", "serve", "--port", "0"]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    body = b'{"question": "Who wrote Dracula?"}'
    head = b"POST /v1/answer?wait_s=600 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n"
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as serving:
        try:
            lines = iter(serving.stderr.readline, "")
            port = next(int(found[1]) for line in lines if (found := re.search(r"127.0.0.1:(\d+)", line)))
            links = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(100)]
            for link in links:
                link.sendall(head % len(body) + body)
            give_up = time.monotonic() + 20
            while httpx.get(f"http://127.0.0.1:{port}/v1/status").json()["counters"]["decided"] < 100:
                assert time.monotonic() < give_up
                time.sleep(0.1)
            for link in links[:50]:
                link.close()
        finally:
            serving.send_signal(signal.SIGTERM)
            began = time.monotonic()
            serving.communicate(timeout=30)
    assert time.monotonic() - began < 8
    replies = [link.recv(65536) for link in links[50:]]
    for link in links:
        link.close()
    assert all(reply.startswith(b"HTTP/1.1 202 ") and b'"status":"pending"' in reply for reply in replies), replies
