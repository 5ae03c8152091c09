"""Coverage of every interval that is printed: how often it holds the truth, at one look and at every look.

    python -m benchmarks.coverage                       # 200 made lives of each kind
    python -m benchmarks.coverage --places replay,warm --runs 50

Kinds of life: benchmarks/coverage/lives.py; places: benchmarks/coverage/places.py.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from benchmarks.coverage.lives import DECISIONS, KINDS
from benchmarks.coverage.places import PLACES, Line, Tally, tallies
from benchmarks.figures import machine
from ragbandit.shared.processes.this_process import cores

#: runs of one job of the pool
_BATCH = 10


def main(arguments: Sequence[str]) -> None:
    """Print a table for every place."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, help="lives of every kind")
    parser.add_argument("--places", default=",".join(PLACES), help="only these, separated by commas")
    parser.add_argument("--jobs", type=int, default=cores())
    asked = parser.parse_args(list(arguments))
    places = [name.strip() for name in asked.places.split(",")]
    if unknown := [name for name in places if name not in PLACES]:
        parser.error(f"unknown place {unknown[0]!r}; known: {', '.join(PLACES)}")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # the processes share the cores already
    console = Console(width=170)
    with (
        ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        for place in places:
            console.print(_table(place, _measured(pool, progress, place, runs=asked.runs)))
    console.print(
        f"{asked.runs} made lives of each kind, {DECISIONS:,} decisions each. A cell: of 100 intervals those that hold "
        "the truth at the last look / of 100 lives those in which all hold it, at every look; in brackets, of 100 "
        "lives those without an interval at the last look: not tried enough, or the log contradicts itself. -: there "
        "was none. !: below the promise by more than chance (three standard errors).",
        highlight=False,
    )
    console.print(machine())


def _measured(
    pool: ProcessPoolExecutor, progress: Progress, place: str, *, runs: int
) -> Mapping[str, Mapping[Line, Tally]]:
    """The tallies of a place by the kind of life."""
    jobs = [
        (kind, pool.submit(tallies, place, kind=kind, seeds=range(first, min(first + _BATCH, runs))))
        for kind in KINDS
        for first in range(0, runs, _BATCH)
    ]
    found: dict[str, dict[Line, Tally]] = {kind: {} for kind in KINDS}
    for kind, job in progress.track(jobs, description=place):
        for line, tally in job.result().items():
            found[kind][line] = found[kind].get(line, Tally()) + tally
    return found


def _table(place: str, found: Mapping[str, Mapping[Line, Tally]]) -> Table:
    columns = [Column(kind, justify="right") for kind in KINDS]
    table = Table(
        Column("line", no_wrap=True), Column("promise", justify="right"), *columns, title=place, box=box.SIMPLE
    )
    for line in dict.fromkeys(line for lines in found.values() for line in lines):
        promise = f"{100 * line.confidence:.0f}" + (" always" if line.every_look else "")
        table.add_row(line.name, promise, *(_cell(lines.get(line, Tally()), line=line) for lines in found.values()))
    return table


def _cell(tally: Tally, *, line: Line) -> str:
    shares = [f"{100 * tally.covered / tally.printed:.0f}" if tally.printed else "-"]
    if line.every_look:
        shares.append(f"{100 * tally.always / tally.ever:.0f}" if tally.ever else "-")
    withheld = f" ({100 * (1 - tally.printed / tally.looks):.0f})" if tally.printed < tally.looks else ""
    return "/".join(shares) + withheld + ("" if tally.keeps(line) else " !")


if __name__ == "__main__":
    main(sys.argv[1:])
