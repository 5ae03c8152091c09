"""Times, percentiles and the one table shape that every benchmark prints."""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line: ours and the baseline's, in the same unit, measured in this run."""

    name: str
    unit: str
    ours: float
    baseline: float | None = None
    #: what the baseline is
    against: str = ""
    #: whether more is better
    rising: bool = False

    @property
    def ratio(self) -> float | None:
        """Factor by which ours is better than the baseline."""
        if self.baseline is None:
            return None
        return self.ours / self.baseline if self.rising else self.baseline / self.ours


def times(work: Callable[[int], object], *, count: int) -> list[float]:
    """Milliseconds of each of `count` calls, given their number."""
    found = []
    for number in range(count):
        began = time.perf_counter()
        work(number)
        found.append((time.perf_counter() - began) * 1000)
    return found


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """p50 and p99."""
    low, high = np.percentile(values, [50, 99])
    return float(low), float(high)


def print_figures(title: str, figures: Sequence[Figure]) -> None:
    """A table, with the machine under it."""
    table = Table("figure", "ours", "baseline", "ratio", "baseline is", title=title)
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.1f}x"
        baseline = "" if figure.baseline is None else f"{figure.baseline:,.2f} {figure.unit}"
        table.add_row(figure.name, f"{figure.ours:,.2f} {figure.unit}", baseline, ratio, figure.against)
    console = Console(width=130)
    console.print(table)
    console.print(machine())


def machine() -> str:
    """This machine, and how busy it is."""
    return f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
