"""Seconds from `kill -9` to the answer: of a service that answers by itself, and of an answer worker.

The caller waits through another service, which goes on. The model's server is silent at the first request of a question
and answers the second one at once.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from benchmarks.figures import Figure, print_figures
from benchmarks.service_process import environment, served
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import answer_queue

KILLS, SILENT_S, START_S = 10, 60.0, 8.0


class _Model(BaseHTTPRequestHandler):
    seen: set[bytes] = set()  # noqa: RUF012 - of all requests

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if body not in self.seen:
            self.seen.add(body)
            time.sleep(SILENT_S)
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        reply = json.dumps({"choices": [choice]}).encode()
        if json.loads(body).get("stream"):
            choice["delta"] = choice.pop("message")
            reply = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if reply.startswith(b"data") else "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


@contextmanager
def _two_workers(config: Path, *, database: str) -> Iterator[None]:
    command = [sys.executable, "-m", "ragbandit", "worker", "--queue", "answer", "--config", str(config)]
    environ = environment() | {"DATABASE_URL": database}
    processes = [subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) for _ in range(2)]
    time.sleep(START_S)
    yield
    for process in processes:
        process.kill()
        process.wait()


def _wait(*, first: int, other: int, key: str, database: str) -> float:
    """Ask both services, kill the process that has claimed the question, and return the second one's wait from then."""
    ask: dict[str, Any] = {
        "json": {"question": key, "decision_id": key},
        "params": {"wait_s": SILENT_S},
        "timeout": SILENT_S,
    }
    claim = select(answer_queue.c.claimed_by).where(answer_queue.c.decision_id == key)
    with ThreadPoolExecutor(2) as pool, closing(Database(database)) as opened:
        asked = pool.submit(httpx.post, f"http://127.0.0.1:{first}/v1/answer", **ask)
        holder = None
        while holder is None:
            assert not asked.done(), asked.result().text
            with opened.read() as connection:
                holder = connection.execute(claim).scalar()
            time.sleep(0.02)
        waiting = pool.submit(httpx.post, f"http://127.0.0.1:{other}/v1/answer", **ask)
        time.sleep(1.0)
        os.kill(int(holder.split(":")[1]), signal.SIGKILL)
        killed = time.monotonic()
        assert waiting.result().json()["status"] == "answered", waiting.result().text
        wait = time.monotonic() - killed
    print(key, f"{wait:.2f} s", flush=True)
    return wait


def main() -> None:
    """Print the table; the argument is the URL of an empty PostgreSQL database."""
    database = sys.argv[1]
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, figures = f"http://127.0.0.1:{server.server_address[1]}/v1", list[Figure]()
    for name, inline in (("service", 32), ("worker", 0)):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
            settings: dict[str, Any] = {"data_dir": folder, "arms": {"model": {"class": "model"}}}
            settings["generator"] = {"name": "openai", "model": "m", "openai": {"base_url": url}}
            settings["workers"] = {"inline": inline}
            other, waits = running.enter_context(served(settings, database=database)), list[float]()
            workers = partial(_two_workers, other.folder / "config.yaml")
            for number in range(KILLS):
                with (partial(served, settings) if inline else workers)(database=database) as victim:
                    first = victim.port if victim else other.port
                    waits.append(_wait(first=first, other=other.port, key=f"{name}-{number}", database=database))
        figures += [Figure(name=f"{name} killed, p50", unit="s", ours=sorted(waits)[KILLS // 2])]
        figures += [Figure(name=f"{name} killed, longest", unit="s", ours=max(waits))]
    print_figures(f"from the kill to the answer ({KILLS} kills each, no Redis)", figures)


if __name__ == "__main__":
    main()
