"""Feedback and outcomes accepted per second, durably: library and HTTP. Baseline: one transaction for each."""

import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from benchmarks.figures import Figure, print_figures, timed
from benchmarks.service_process import environment, free_port
from ragbandit.client import Client
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import DecisionId, Feedback, Outcome, Query

COUNT = 4000
ALONE = 500
BATCH = 500
CALLERS = 16


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        # All are handed over at once: the queues take as many as there are.
        unbounded = {"max_waiting": 1_000_000, "max_wait_s": 3600.0}
        config.write_text(yaml.safe_dump({"data_dir": folder, "encoder": {"model": "hashing"}, "server": unbounded}))
        settings = load(config, environ={}).settings
        with Router.open(settings, jobs=MemoryJobs()) as router:
            asked = [router.submit(Query(text=f"question {n}")) for n in range(ALONE + 2 * COUNT)]
            ids = [future.result().id for future in asked]

            def made(number: int) -> Feedback:
                return made_feedback(
                    decision_id=ids[number % len(ids)], settings=settings, now=time.time(), label=["Paris"]
                )

            single = timed(lambda: [router.store.add_feedback([made(n)]) for n in range(ALONE)])
            together = timed(lambda: [f.result() for f in [router.submit_feedback(made(n)) for n in range(COUNT)]])
            ended = timed(lambda: [router.store.add_outcome(_outcome(key)) for key in ids[:ALONE]])
            ends = ids[ALONE : ALONE + COUNT]
            ended_together = timed(lambda: [f.result() for f in [router.submit_outcome(_outcome(key)) for key in ends]])
            over_http, in_batches, ended_over_http = _http(settings, config, ids)
            kept = router.status().counters.feedback
            assert kept == ALONE + COUNT + COUNT + COUNT, kept
            assert len(router.store.outcomes_by_id(ids)) == len(ids)
    against = "one transaction for each, no HTTP"
    print_figures(
        "feedback and outcomes accepted (SQLite, synchronous=FULL)",
        [
            Figure(name=name, unit="/s", ours=COUNT / seconds, baseline=ALONE / alone, against=against, rising=True)
            for name, seconds, alone in (
                ("library, concurrent", together, single),
                ("POST /v1/feedback, 16 callers", over_http, single),
                (f"POST /v1/feedback/batch of {BATCH}", in_batches, single),
                ("outcomes, library, concurrent", ended_together, ended),
                ("POST /v1/outcomes, 16 callers", ended_over_http, ended),
            )
        ],
    )


def _outcome(decision_id: DecisionId) -> Outcome:
    return made_outcome(decision_id=decision_id, now=time.time(), status="answered", answer="Paris", steps=1.0)


def _http(settings: Settings, config: Path, ids: Sequence[str]) -> tuple[float, float, float]:
    """Seconds for COUNT feedbacks, one a request and in batches, and for COUNT outcomes of the last decisions.

    The service is a process of its own, with Redis; the clients share the machine with it.
    """
    redis = RedisServer(settings)
    redis.start()
    port = free_port()
    environ = environment() | {"RAGBANDIT_SERVER__PORT": str(port)}
    command = [sys.executable, "-m", "ragbandit", "serve", "--config", str(config)]
    service = subprocess.Popen(command, env=environ)
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            while not client.ready():
                assert service.poll() is None
                time.sleep(0.05)
        one = [json.dumps({"decision_id": ids[n % len(ids)], "rating": True}) for n in range(COUNT)]
        single = timed(lambda: _send_shares(port, "/v1/feedback", one))
        ends = [json.dumps({"decision_id": key, "answer": "Paris", "steps": 1}) for key in ids[-COUNT:]]
        ended = timed(lambda: _send_shares(port, "/v1/outcomes", ends))
        items = [{"decision_id": ids[n % len(ids)], "rating": True} for n in range(COUNT)]
        many = [json.dumps({"items": items[start : start + BATCH]}) for start in range(0, COUNT, BATCH)]
        batches = timed(lambda: _send(port, "/v1/feedback/batch", many))
    finally:
        service.terminate()
        service.wait(20)
        redis.stop()
    return single, batches, ended


def _send_shares(port: int, path: str, bodies: list[str]) -> None:
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(lambda start: _send(port, path, bodies[start::CALLERS]), range(CALLERS)))


def _send(port: int, path: str, bodies: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for body in bodies:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 202
    connection.close()


if __name__ == "__main__":
    main()
