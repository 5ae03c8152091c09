"""From the word that a model writes to the client that reads it: real worker, real Redis, real service, real HTTP.

    python -m benchmarks.streaming

Every word of the model is the time at which it was written, so that the client sees how long each was on its way.
Baseline of the words a second: the same model asked in one process, without worker, Redis and HTTP.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np

from benchmarks.figures import Figure, print_figures
from benchmarks.service_process import environment, served
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.redis_server import RedisServer, redis_url
from ragbandit.strategies.base import Completion, Prompt, Request
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.generators.text_feed import TextFeed

#: words of an answer, and the model's pause between two of them where it takes its time, seconds
WORDS, PAUSE_S = 150, 0.01
#: answers of which the first words are measured, with one stream at a time and with 16
ALONE, TOGETHER, ROUNDS = 30, 16, 3
ARMS = {"no_retrieval": {"preset": "chat"}}


class TimedGenerator(ScriptedGenerator):
    """Writes the time, again and again; a question with "slow" in it makes it pause before every word."""

    def __init__(self) -> None:
        super().__init__([], context_tokens=100_000)

    async def complete(self, request: Request) -> Completion:
        """WORDS words, each the time.time() at which it was given out."""
        feed, text = TextFeed(request), ""
        for _ in range(WORDS):
            await asyncio.sleep(PAUSE_S if "slow" in request.prompt.body else 0.0)
            text += f"{time.time():.6f} "
            await feed.grow(text)
        await feed.end(text)
        return Completion(text=text, prompt_tokens=1, completion_tokens=WORDS, finish="stop")


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Settings(data_dir=folder))
        server.start()
        try:
            given = {"arms": ARMS, "redis_url": redis_url(Settings(data_dir=folder)), "log": {"text": "full"}}
            with served(given) as service:
                config = service.folder / "config.yaml"
                command = [sys.executable, "-m", "benchmarks.streaming", "--worker", str(config)]
                with Path(folder, "worker.log").open("wb") as log:
                    worker = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
                try:
                    _measure(f"http://127.0.0.1:{service.port}")
                except BaseException:
                    for log_file in (Path(folder, "worker.log"), service.folder / "log"):
                        print(log_file.read_text(encoding="utf-8")[-3000:])
                    raise
                finally:
                    worker.terminate()
                    worker.wait(20)
        finally:
            server.stop()


def _measure(url: str) -> None:
    _asked(url, "slow warm-up")
    alone = [_asked(url, "slow") for _ in range(ALONE)]
    together = [one for _ in range(ROUNDS) for one in _at_once(url, "slow", count=TOGETHER)]
    for name, answers in (("1 stream", alone), (f"{TOGETHER} streams", together)):
        figures = [
            Figure(name=f"{what}, p{share}", unit="ms", ours=float(np.percentile(delays, share)))
            for what, delays in (
                ("first word", [each[0] for each in answers]),
                ("every word", [delay for each in answers for delay in each]),
            )
            for share in (50, 90, 99, 100)
        ]
        print_figures(f"from the model to the client, {name}, {len(answers)} answers of {WORDS} words", figures)
    figures = []
    for count in (1, TOGETHER):
        began = time.perf_counter()
        asked = [one for _ in range(ROUNDS) for one in _at_once(url, "quick", count=count)]
        speed = len(asked) * WORDS / (time.perf_counter() - began)
        direct = asyncio.run(_direct(count))
        name = f"{count} stream{'s' if count > 1 else ''}"
        figures.append(
            Figure(name=name, unit="words/s", ours=speed, baseline=direct, against="the model alone", rising=True)
        )
    print_figures("words a second, a model that does not pause, decisions and outcomes included", figures)


def _asked(url: str, question: str) -> list[float]:
    """Milliseconds on its way of every word."""
    delays: list[float] = []
    name = ""
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", f"{url}/v1/answer?stream=true", json={"question": question}) as reply,
    ):
        for line in reply.iter_lines():
            now = time.time()
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: ") and name == "text":
                # The last word may lack its end where two pieces part, which is never within a word here.
                delays += [1000 * (now - float(word)) for word in json.loads(line[6:])["text"].split()]
            elif line.startswith("data: ") and name in ("outcome", "error"):
                found: Any = json.loads(line[6:])
                if found.get("status") != "answered":
                    raise RuntimeError(f"no answer: {found}")
    return delays


def _at_once(url: str, question: str, *, count: int) -> list[list[float]]:
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.append(_asked(url, question))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


async def _direct(count: int) -> float:
    """Words a second of the model, read along in its own process by so many at once."""

    async def sink(_piece: str) -> None:
        """Take it."""

    generator = TimedGenerator()
    request = Request(prompt=Prompt(instructions="", body="quick"), max_tokens=9999, sink=sink)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        await asyncio.gather(*(generator.complete(request) for _ in range(count)))
    return ROUNDS * count * WORDS / (time.perf_counter() - began)


def _work(config: str) -> None:
    """A worker like any other, with that model."""
    from ragbandit.workers import process
    from ragbandit.workers.wiring import loading

    with patch.object(loading, "generator_and_concurrency", lambda *_, **__: (TimedGenerator(), TOGETHER)):
        process.run_worker(load(config, environ=os.environ).settings, queues=["answer"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _work(sys.argv[2])
    else:
        main()
