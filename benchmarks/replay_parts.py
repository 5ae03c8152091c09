"""Replay of a log in many Parquet files: rows per second of one process and of several, and what 100 million rows take.

    python -m benchmarks.replay_parts --rows 10000000 --parts 8 --workers 2 [--folder DIR]

A row has three arms and no features; the candidate's pmf is a column. The figure for 100 million rows is the rows per
second of this run, carried on: time grows with the rows, the memory of a process does not. With --rows 100000000 it is
measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import machine
from benchmarks.replay_speed import write_log

ROWS, PARTS, WORKERS = 10_000_000, 8, 2
ASKED = 100_000_000


def write_parts(folder: Path, *, rows: int, parts: int) -> None:
    """The log, in files of equally many rows; those that are there stay."""
    each = rows // parts
    for part in range(parts):
        path = folder / f"part-{part:04}.parquet"
        if not path.exists():
            write_log(path, rows=each, first=part * each)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a command took, all of its processes together, and the reward that it found."""

    seconds: float
    processor_s: float
    #: of the largest process, GiB
    memory: float
    reward: tuple[float, float, float]


def judged(folder: Path, *, workers: int) -> Spent:
    """`ragbandit replay` on the folder; 0 workers: in one process, without the engine."""
    words = ["replay", "--log", str(folder), "--policy", "column:better", "--json"]
    words += ["--workers", str(workers)] if workers else []
    began = time.perf_counter()
    command = [sys.executable, "-m", "ragbandit", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    found = json.loads(said)["candidates"][0]["reward"]
    return Spent(
        seconds=time.perf_counter() - began,
        processor_s=usage.ru_utime + usage.ru_stime,
        memory=usage.ru_maxrss / 1024**2,
        reward=(found["value"], found["low"], found["high"]),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_parts", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--parts", type=int, default=PARTS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--folder", type=Path, help="keeps the files for the next run")
    asked = parser.parse_args(arguments)
    rows = asked.rows // asked.parts * asked.parts
    table = Table(
        "processes", "seconds", "seconds of CPU", "GiB", "rows/s", f"{ASKED / 1e6:.0f} million rows", "reward"
    )
    with tempfile.TemporaryDirectory() as made:
        folder: Path = asked.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        write_parts(folder, rows=rows, parts=asked.parts)
        for workers in (0, asked.workers):
            spent = judged(folder, workers=workers)
            speed = rows / spent.seconds
            table.add_row(
                f"{workers} workers" if workers else "this one",
                f"{spent.seconds:.1f}",
                f"{spent.processor_s:.1f}",
                f"{spent.memory:.2f}",
                f"{speed:,.0f}",
                f"{ASKED / speed / 60:.1f} min" + ("" if rows >= ASKED else " (carried on)"),
                f"{spent.reward[0]!r} ({spent.reward[1]:.6f} to {spent.reward[2]:.6f})",
            )
    console = Console(width=150)
    console.print(f"{rows:,} rows in {asked.parts} files")
    console.print(table)
    console.print(machine())


if __name__ == "__main__":
    main()
