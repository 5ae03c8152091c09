"""route() with DistilBERT and a durable log: one caller, and 16 concurrent callers; encoder.threads; encoder.max_batch.

Baseline of the first table: the same encoder called for one question at a time, which is what peers do and the least
that any router on DistilBERT can cost without grouping. `--precision int8` measures another precision than "auto".

`--threads` prints only the second table: one encoder thread against one for every core, for one caller, for 16 callers,
and for one caller on a machine that is busy with a loop for every core. `--batches` prints only the third table: 16
callers with small and large batches, in int8 and bfloat16. All routers of a table take turns in one run, so that other
work of the machine falls on all of them. A cell ends early with fewer questions. The command runs with OpenMP's own
long spin, as a library does; set GOMP_SPINCOUNT=1000 before it for the spin of the service.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
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
#: values of encoder.max_batch in the third table, the default last
SIZES = (4, 8, 16, 32)
#: rounds of the routers with 16 callers, and the questions of each round
ROUNDS, ROUND = 6, 160
#: most questions of one caller in the second table, the seconds after which it ends with fewer, and the pause between
#: two questions
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="auto", help="encoder.precision of the first table")
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument("--threads", action="store_true", help="only the table by encoder.threads")
    tables.add_argument("--batches", action="store_true", help="only the table by encoder.max_batch")
    options = parser.parse_args(arguments)
    if options.batches:
        _by_batches()
        return
    if not options.threads:
        _by_callers(options.precision)
    _by_threads()


def _opened(opened: ExitStack, **encoder: object) -> Router:
    """A router on a new store with these settings of the encoder; every question is computed, none is cached."""
    tree = {"model": DEFAULT_ENCODER, "cache_entries": 0, **encoder}
    environ = {f"RAGBANDIT_ENCODER__{name.upper()}": str(value) for name, value in tree.items()}
    environ["RAGBANDIT_SERVER__MAX_WAIT_S"] = "60"  # no caller is refused on a busy machine
    environ["RAGBANDIT_DATA_DIR"] = opened.enter_context(tempfile.TemporaryDirectory())
    return opened.enter_context(Router.open(load(environ=environ).settings, jobs=MemoryJobs()))


def _by_threads() -> None:
    """The table of one encoder thread against one for every core."""
    cores = os.cpu_count() or 1
    with ExitStack() as opened:
        routers = [_opened(opened, threads=count) for count in (1, cores)]
        _in_turns(routers, count=10, seconds=10.0)
        cells = {"one caller": _in_turns(routers, count=CELL, seconds=CELL_S)}
        by_router = _together(dict(enumerate(routers)))
        cells[f"{CALLERS} callers"] = list(by_router.values())
        with busy_loops(cores):
            cells["busy machine"] = _in_turns(routers, count=CELL, seconds=CELL_S)
    figures = []
    against = f"{cores} threads"
    for cell, (single, every_core) in cells.items():
        name = f"{cell}, {len(single)} questions:"
        for figure, ours, theirs in zip(("p50", "p99"), percentiles(single), percentiles(every_core), strict=True):
            figures.append(Figure(name=f"{name} {figure}", unit="ms", ours=ours, baseline=theirs, against=against))
    default, spin = default_threads(os.environ, cores=cores), os.environ.get("GOMP_SPINCOUNT", "OpenMP's own")
    print_figures(f"route() with 1 encoder thread; the default is {default} here, with the spin {spin}", figures)


def _by_batches() -> None:
    """The table of 16 callers by the largest batch."""
    figures = []
    for precision in ("int8", "bfloat16"):
        with ExitStack() as opened:
            routers = {size: _opened(opened, precision=precision, max_batch=size) for size in SIZES}
            medians = {size: percentiles(spent)[0] for size, spent in _together(routers).items()}
        for size, median in medians.items():
            name = f"{precision}, batches of at most {size}: p50"
            against = f"at most {SIZES[-1]}, the default"
            figures.append(Figure(name=name, unit="ms", ours=median, baseline=medians[SIZES[-1]], against=against))
    print_figures(f"route() under {CALLERS} callers, by encoder.max_batch", figures)


def _together(routers: Mapping[int, Router]) -> dict[int, list[float]]:
    """Milliseconds of route() under 16 callers, by router; the routers take turns, and the first turn warms them up."""
    spent: dict[int, list[float]] = {key: [] for key in routers}
    for turn in range(ROUNDS + 1):
        for key, router in routers.items():
            milliseconds = _called(router, count=ROUND)
            if turn:
                spent[key] += milliseconds
    return spent


def _called(router: Router, *, count: int) -> list[float]:
    """Milliseconds of each route() of `count` questions by 16 callers."""

    def call(number: int) -> float:
        began = time.perf_counter()
        router.route(question(number))
        return (time.perf_counter() - began) * 1000

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(call, range(count)))


def _in_turns(routers: Sequence[Router], *, count: int, seconds: float) -> list[list[float]]:
    """Milliseconds of route(), by router; a pause before each, as between the questions of a quiet service.

    count questions to each router, or as many as fit into the seconds.
    """
    milliseconds: list[list[float]] = [[] for _ in routers]
    end = time.perf_counter() + seconds
    for number in range(count):
        for router, spent in zip(routers, milliseconds, strict=True):
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            router.route(question(number))
            spent.append((time.perf_counter() - began) * 1000)
        if time.perf_counter() > end:
            break
    return milliseconds


def _by_callers(precision: str) -> None:
    """The table of one caller and of many."""
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
    main(sys.argv[1:])
