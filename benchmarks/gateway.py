"""Pieces of a model's answer on their way through a service: from the server's write to the client's read.

Real Redis, a real worker and service; the model's server writes the time into every piece. Baseline: the same client
on that server.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import openai
import yaml

from benchmarks import gateway_beside
from benchmarks.figures import Figure, percentiles, print_figures
from benchmarks.service_process import environment, free_port
from tests.support.servers.postgres_server import PostgresServer

#: pieces of an answer, the pause between two of them in seconds, and answers
PIECES, PAUSE_S, ANSWERS = 30, 0.03, 20


class _Clock(BaseHTTPRequestHandler):
    """Writes an answer whose words are the times at which they are written."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(PIECES + 1):
            time.sleep(PAUSE_S)
            delta = {"content": f"{time.time():.6f} "} if number < PIECES else {}
            choice = {"index": 0, "delta": delta, "finish_reason": None if number < PIECES else "stop"}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="a virtual environment with litellm[proxy], to measure as well")
    parser.add_argument("--encoder", choices=("hashing", "distilbert"), default="hashing")
    parser.add_argument("--postgres", action="store_true", help="RagBandit stores in a PostgreSQL that is started here")
    parser.add_argument("--stream-as-caller", action="store_true", help="RagBandit has `openai.stream: caller`")
    given, _ = parser.parse_known_args()
    with contextlib.ExitStack() as stack:
        database = None
        if given.postgres:
            server = PostgresServer(durable=True)
            stack.callback(server.stop)
            server.start()
            database = server.url(server.new_database())
        gateway_beside.run(given.beside, encoder=given.encoder, database=database, streams=not given.stream_as_caller)
    _print_pieces()


def _print_pieces() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Clock)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    direct, port = f"http://127.0.0.1:{server.server_address[1]}/v1", free_port()
    settings = {
        "encoder": {"model": "hashing"},
        "arms": {"model": {"class": "model"}},
        "generator": {"name": "openai", "model": "m", "openai": {"base_url": direct}},
        "server": {"port": port},
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(yaml.safe_dump(settings | {"data_dir": folder}))
        command = [sys.executable, "-m", "ragbandit", "up", "--config", str(config)]
        with Path(folder, "up.log").open("wb") as log:
            up = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), cwd=folder)
        try:
            through = f"http://127.0.0.1:{port}/v1"
            _lags(through, answers=1, wait_s=60)
            ours, baseline = _lags(through, answers=ANSWERS), _lags(direct, answers=ANSWERS)
        finally:
            up.terminate()
            up.wait(30)
            server.shutdown()
    against, rows = "the same client without a service", list[Figure]()
    for name, last in (("first piece", 1), ("all pieces", PIECES)):
        mine, theirs = (percentiles([lag for one in lags for lag in one[:last]]) for lags in (ours, baseline))
        rows += [
            Figure(name=f"{name} {label}", unit="ms", ours=mine[at], baseline=theirs[at], against=against)
            for at, label in enumerate(("p50", "p99"))
        ]
    print_figures(f"a piece of an answer, written to read ({ANSWERS} answers of {PIECES} pieces)", rows)


def _lags(url: str, *, answers: int, wait_s: float = 0.0) -> list[list[float]]:
    """Milliseconds from the write of every piece to its read, by answer. wait_s: until the service is there."""
    give_up, lags = time.monotonic() + wait_s, list[list[float]]()
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=30) as client:
        while len(lags) < answers:
            try:
                stream = client.chat.completions.create(
                    model="arm/model", messages=[{"role": "user", "content": "What time is it?"}], stream=True
                )
            except openai.APIError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.2)
                continue
            texts = [(choice.delta.content, time.time()) for chunk in stream for choice in chunk.choices]
            lags.append([(read - float(word)) * 1000 for text, read in texts if text for word in text.split()])
    return lags


if __name__ == "__main__":
    main()
