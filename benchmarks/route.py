"""route(): alone and under 16 concurrent callers, with the real encoder and a durable log; and by encoder.threads.

Baseline: the same encoder called for one question at a time, which is what peers do and the least that any
router on DistilBERT can cost without grouping.

`python -m benchmarks.route --threads` prints the second table alone: route() with one encoder thread and with one for
every core, alone and beside a busy loop for every core, which it starts and ends. The two take turns in one run, so
that whatever else the machine does falls on both. It takes about two minutes at most: a cell ends early with fewer
questions, and says how many. As a library it runs with OpenMP's own long spin; with GOMP_SPINCOUNT=1000 before the
command, as in the service.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.figures import Figure, percentiles, print_figures, timed, times
from benchmarks.isa_matrix import busy_loops
from ragbandit.router.config.loading import load
from ragbandit.router.encoders.base import HalfPrecisionEncoder
from ragbandit.router.encoders.distilbert import DistilBertEncoder
from ragbandit.router.encoders.forward import default_threads
from ragbandit.router.encoders.weights import DEFAULT_ENCODER
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_encoder

CALLERS = 16
COUNT = 1500
#: of the table by threads: the questions of a cell, the seconds after which a cell ends with fewer, and the time
#: between two questions
CELL = 100
CELL_S = 50.0
PAUSE_S = 0.02

HANDBOOK = Path(__file__).parents[1] / "examples" / "handbook" / "questions.jsonl"
QUESTIONS = [json.loads(line)["question"] for line in HANDBOOK.read_text(encoding="utf-8").splitlines()]


def question(number: int) -> str:
    """A real one; there is no cache, so repeating them costs the same every time."""
    return str(QUESTIONS[number % len(QUESTIONS)])


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", action="store_true", help="the table by encoder.threads alone")
    if not parser.parse_args(arguments).threads:
        _by_callers()
    _by_threads()


def _by_threads() -> None:
    """The table of one encoder thread against one for every core."""
    cores = os.cpu_count() or 1
    with ExitStack() as opened:
        routers = []
        for count in (1, cores):
            folder = opened.enter_context(tempfile.TemporaryDirectory())
            environ = {"RAGBANDIT_DATA_DIR": folder, "RAGBANDIT_ENCODER__THREADS": str(count)}
            settings = load(environ=environ).settings
            routers.append(opened.enter_context(Router.open(settings, jobs=MemoryJobs())))
        _in_turns(routers, count=10, seconds=10.0)
        alone = _in_turns(routers, count=CELL, seconds=CELL_S)
        with busy_loops(cores):
            busy = _in_turns(routers, count=CELL, seconds=CELL_S)
    figures = []
    against = f"{cores} threads"
    for where, (ours, all_cores) in (("alone", alone), ("beside busy loops", busy)):
        name = f"{where}, {len(ours)} questions:"
        for figure, mine, theirs in zip(("p50", "p99"), percentiles(ours), percentiles(all_cores), strict=True):
            figures.append(Figure(name=f"{name} {figure}", unit="ms", ours=mine, baseline=theirs, against=against))
    default, spin = default_threads(os.environ, cores=cores), os.environ.get("GOMP_SPINCOUNT", "OpenMP's own")
    print_figures(f"route() with 1 encoder thread; the default is {default} here, with the spin {spin}", figures)


def _in_turns(routers: Sequence[Router], *, count: int, seconds: float) -> list[list[float]]:
    """Milliseconds of route(), by router; a pause before each, as between the questions of a quiet service.

    count questions to each router, or as many as fit into the seconds.
    """
    found: list[list[float]] = [[] for _ in routers]
    end = time.perf_counter() + seconds
    for number in range(count):
        for router, spent in zip(routers, found, strict=True):
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            router.route(question(number))
            spent.append((time.perf_counter() - began) * 1000)
        if time.perf_counter() > end:
            break
    return found


def _by_callers() -> None:
    """The table of one caller and of many."""
    with tempfile.TemporaryDirectory() as folder:
        # Every question is computed: a cache would answer those that come again.
        environment = {
            "RAGBANDIT_DATA_DIR": folder,
            "RAGBANDIT_ENCODER__CACHE_ENTRIES": "0",
            "RAGBANDIT_ENCODER__MODEL": DEFAULT_ENCODER,
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

            def call(number: int) -> float:
                began = time.perf_counter()
                router.route(question(number))
                return (time.perf_counter() - began) * 1000

            with ThreadPoolExecutor(CALLERS) as pool:
                together: list[float] = []
                seconds = timed(lambda: together.extend(pool.map(call, range(COUNT))))

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
    one, many, least, waited = (percentiles(found) for found in (alone, together, forward, queued))
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
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
