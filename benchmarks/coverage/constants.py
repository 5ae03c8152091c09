"""What each constant of the report's estimator does (docs/estimates.md): coverage and width with another value of it.

    python -m benchmarks.coverage.constants                          # every constant, 10 made lives of each kind
    python -m benchmarks.coverage.constants UNSEEN_ROWS LEAN --runs 20

"held" counts a line of a report (reward, quality or cost against an arm) of a life if its intervals hold the truth at
every look. "width" is the mean ratio of the widths at the last look to those with the present values.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Final, NamedTuple
from unittest import mock

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Column, Table

from benchmarks.coverage import places
from benchmarks.coverage.lives import KINDS
from benchmarks.figures import machine
from ragbandit.router.reporting import estimates
from ragbandit.router.reporting.estimates import bounds, control_variates, draws, mean_intervals, served
from ragbandit.shared.processes.this_process import cores

#: numbers of decisions after which the intervals are checked; fewer than in the other tables, since there are many
LOOKS: Final = (200, 500, 1_000, 2_000)
#: constant -> other values of it. Shares of the error are changed together: of controls, best and worst
OTHER_VALUES: Final[Mapping[str, Sequence[float]]] = {
    "NARROWEST_AT": (25, 400),
    "UNSEEN_ROWS": (0.0, 0.75, 2.0),
    "LEAN": (0.0, 1.0),
    "MOST_LEAN": (0.0, 10.0),
    "LEAST_ROOM": (0.0, 0.5),
    "PRIOR_ROWS": (0.0, 10.0),
    "FEWEST_FOR_SLOPE": (3, 10**9),
    "HALF_SLOPE": (0.0, 100.0),
    "ERROR_OF_CONTROLS": (1 / 3, 0.998),
    "LEAST_CHANCE": (1e-9, 0.01),
    "FEWEST_EFFECTIVE": (5, 20),
}
_MODULES: Final = (estimates, bounds, control_variates, draws, mean_intervals, served)
_SHARES: Final = ("ERROR_OF_BEST", "ERROR_OF_WORST")


class Measured(NamedTuple):
    is_held: bool  #: at every look with an interval
    width: float  #: at the last look; NaN without an interval


#: (kind, seed, line) -> what was measured
Lines = Mapping[tuple[str, int, str], Measured]


def measured(changed: Mapping[str, float], *, runs: int) -> Lines:
    """Every line of the report with these constants changed."""
    lines = dict[tuple[str, int, str], Measured]()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(places, "LOOKS", LOOKS))
        for name, value in changed.items():
            for module in _MODULES:
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, value))
        for kind in KINDS:
            for seed in range(runs):
                for line, looks in places.report(KINDS[kind], seed).items():
                    *_, last = looks
                    width = float("nan") if last.low is None or last.high is None else last.high - last.low
                    is_held = not any(look.missed for look in looks)
                    lines[kind, seed, line.name] = Measured(is_held=is_held, width=width)
    return lines


def _changed(name: str, value: float) -> Mapping[str, float]:
    if name != "ERROR_OF_CONTROLS":
        return {name: value}
    return {name: value, **dict.fromkeys(_SHARES, (1.0 - value) / 2.0)}


def _row(lines: Lines, usual: Lines) -> tuple[str, ...]:
    """Cells of a table: lines that were held, the worst kind, width of the reward and of the cost."""
    held = {kind: float(np.mean([one.is_held for key, one in lines.items() if key[0] == kind])) for kind in KINDS}
    worst = min(held, key=held.__getitem__)
    ratios = dict[str, list[float]]()
    for key, one in lines.items():
        ratio = one.width / usual[key].width
        if np.isfinite(ratio):
            ratios.setdefault(key[2].split(",")[0], []).append(ratio)
    everywhere = float(np.mean([one.is_held for one in lines.values()]))
    widths = (f"{np.mean(ratios[name]):.3f}" for name in ("reward", "cost"))
    return f"{100 * everywhere:.1f} %", f"{100 * held[worst]:.0f} % ({worst})", *widths


def main(arguments: Sequence[str]) -> None:
    """Print a line for every other value of a constant."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage.constants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("constants", nargs="*", help=f"of {', '.join(OTHER_VALUES)}; default: all")
    parser.add_argument("--runs", type=int, default=10, help="lives of every kind")
    parser.add_argument("--jobs", type=int, default=cores())
    options = parser.parse_args(list(arguments))
    if unknown := set(options.constants) - OTHER_VALUES.keys():
        parser.error(f"unknown constant {min(unknown)!r}; known: {', '.join(OTHER_VALUES)}")
    right = Column("held", justify="right"), "worst kind", "width of reward", "width of cost"
    table = Table("constant", Column("value", justify="right"), *right, box=box.SIMPLE)
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        usual = pool.submit(measured, {}, runs=options.runs)
        jobs = {
            (name, value): pool.submit(measured, _changed(name, value), runs=options.runs)
            for name in options.constants or OTHER_VALUES
            for value in OTHER_VALUES[name]
        }
        table.add_row("as they are", "", *_row(usual.result(), usual.result()))
        for (name, value), job in jobs.items():
            table.add_row(name, f"{value:.4g}", *_row(job.result(), usual.result()))
    Console(width=120).print(table)
    print(f"{options.runs} made lives of each of {len(KINDS)} kinds; {machine()}")


if __name__ == "__main__":
    main(sys.argv[1:])
