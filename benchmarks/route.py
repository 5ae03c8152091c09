"""route() with DistilBERT and a durable log: one caller, and 16 concurrent callers.

Baseline: the same encoder called for one question at a time, which is what peers do and the least that any router on
DistilBERT can cost without grouping. `--precision int8` measures another precision than "auto".
"""

import argparse
import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.figures import Figure, percentiles, print_figures, timed, times
from ragbandit.router.config.loading import load
from ragbandit.router.encoders.distilbert import DistilBertEncoder
from ragbandit.router.encoders.half_precision import HalfPrecisionEncoder
from ragbandit.router.encoders.weights import DEFAULT_ENCODER
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_encoder

CALLERS = 16
COUNT = 1500

HANDBOOK = Path(__file__).parents[1] / "examples" / "handbook" / "questions.jsonl"
QUESTIONS = [json.loads(line)["question"] for line in HANDBOOK.read_text(encoding="utf-8").splitlines()]


def question(number: int) -> str:
    """A real one; there is no cache, so repeating them costs the same every time."""
    return str(QUESTIONS[number % len(QUESTIONS)])


def _called(router: Router, *, count: int) -> list[float]:
    """Milliseconds of each route() of `count` questions by 16 callers."""

    def call(number: int) -> float:
        began = time.perf_counter()
        router.route(question(number))
        return (time.perf_counter() - began) * 1000

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(call, range(count)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.route", description=__doc__)
    parser.add_argument("--precision", default="auto", help="encoder.precision")
    precision = parser.parse_args().precision
    with tempfile.TemporaryDirectory() as folder:
        # Every question is computed: a cache would answer those that come again.
        environment = {
            "RAGBANDIT_DATA_DIR": folder,
            "RAGBANDIT_SERVER__MAX_WAIT_S": "60",
            "RAGBANDIT_ENCODER__CACHE_ENTRIES": "0",
            "RAGBANDIT_ENCODER__MODEL": DEFAULT_ENCODER,
            "RAGBANDIT_ENCODER__PRECISION": precision,
        }
        settings = load(environ=environment).settings
        encoder = make_encoder(settings.encoder)
        assert isinstance(encoder, HalfPrecisionEncoder)
        assert isinstance(encoder.encoder, DistilBertEncoder)
        for number in range(50):
            encoder.encode([question(number)])
        forward = times(lambda number: encoder.encode([question(number)]), count=300)
        with Router.open(settings, encoder=encoder, jobs=MemoryJobs()) as router:
            times(lambda number: router.route(question(number)), count=50)
            alone = times(lambda number: router.route(question(number)), count=300)

            together: list[float] = []
            seconds = timed(lambda: together.extend(_called(router, count=COUNT)))

            turn = threading.Lock()

            def one_at_a_time(number: int) -> float:
                began = time.perf_counter()
                with turn:
                    encoder.encode([question(number)])
                return (time.perf_counter() - began) * 1000

            with ThreadPoolExecutor(CALLERS) as pool:
                queued: list[float] = []
                lock_step = timed(lambda: queued.extend(pool.map(one_at_a_time, range(COUNT))))
            assert router.status().counters.decided == 350 + COUNT
    one, many, least, waited = (percentiles(spent) for spent in (alone, together, forward, queued))
    queue = f"{CALLERS} callers, encoder forwards one at a time"
    print_figures(
        f"route() with {settings.encoder.model}, {encoder.encoder.precision}",
        [
            Figure(name="alone p50", unit="ms", ours=one[0], baseline=least[0], against="encoder forward alone"),
            Figure(name="alone p99", unit="ms", ours=one[1], baseline=least[1], against="encoder forward alone"),
            Figure(name=f"{CALLERS} callers p50", unit="ms", ours=many[0], baseline=waited[0], against=queue),
            Figure(name=f"{CALLERS} callers p99", unit="ms", ours=many[1], baseline=waited[1], against=queue),
            Figure(
                name="durable decisions",
                unit="/s",
                ours=COUNT / seconds,
                baseline=COUNT / lock_step,
                against="encoder forwards one at a time, nothing logged",
                rising=True,
            ),
            Figure(
                name=f"durable decisions, {CALLERS} callers",
                unit="/s",
                ours=COUNT / seconds,
                baseline=1000.0 * len(alone) / sum(alone),
                against="one caller",
                rising=True,
            ),
        ],
    )


if __name__ == "__main__":
    main()
