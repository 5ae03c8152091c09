"""Judging a log: the estimate with its interval in memory, and ten million rows out of a Parquet file.

Baselines: the Open Bandit Pipeline's doubly robust estimate with 100 bootstraps, where it is installed; and for the
file, the least that anybody must do who judges it in memory: read the columns with pyarrow and take the mean of
weight * reward.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.coverage.methods import weight_powers
from benchmarks.figures import Figure, print_figures
from ragbandit.router.comparison.intervals import Moments, cressie_read, extreme_rows, heavy_weight
from ragbandit.router.offline.estimation import scores

ROWS, ARMS = 100_000, 3
LARGE = 10_000_000
PIECE = 16_384
TWICE = 7

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Sample:
    """A log of independent rows with a model that is nearly right."""

    def __init__(self, rows: int, *, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.logged: Matrix = draw.dirichlet(np.ones(ARMS), size=rows) * 0.94 + 0.02
        self.candidate: Matrix = draw.dirichlet(np.full(ARMS, 0.3), size=rows)
        self.action = (draw.random(rows)[:, None] > self.logged.cumsum(axis=1)).sum(axis=1).clip(0, ARMS - 1)
        self.predicted: Matrix = draw.random((rows, ARMS))
        chance = self.predicted[np.arange(rows), self.action]
        self.reward: Vector = (draw.random(rows) < chance).astype(np.float64)


def ours(sample: Sample) -> tuple[float, float]:
    """The doubly robust interval, piece by piece as `judge` does it."""
    total: Moments | None = None
    powers = np.zeros(2)
    for start in range(0, len(sample.reward), PIECE):
        rows = slice(start, start + PIECE)
        made = Moments.of(
            *scores(
                reward=sample.reward[rows],
                action=sample.action[rows],
                logged=sample.logged[rows],
                candidate=sample.candidate[rows],
                predicted=sample.predicted[rows],
            )
        )
        powers += weight_powers(sample.logged[rows], candidate=sample.candidate[rows])
        total = made if total is None else total.merged(made)
    assert total is not None
    scored = total.combined(np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))
    extremes = extreme_rows([heavy_weight(powers)], rewards=(0.0, 1.0), baseline=float(total.mean[2]))
    return cressie_read(scored, confidence=0.95, extremes=extremes)


def theirs(sample: Sample) -> Callable[[], object] | None:
    """OBP's doubly robust estimate with 100 bootstraps; None where it is not installed."""
    if importlib.util.find_spec("obp") is None:
        return None
    from obp.ope import DoublyRobust

    pscore = sample.logged[np.arange(len(sample.reward)), sample.action]
    position = np.zeros(len(sample.reward), dtype=int)

    def run() -> object:
        return DoublyRobust().estimate_interval(
            reward=sample.reward,
            action=sample.action,
            pscore=pscore,
            action_dist=sample.candidate[:, :, None],
            estimated_rewards_by_reg_model=sample.predicted[:, :, None],
            position=position,
            n_bootstrap_samples=100,
            random_state=0,
        )

    return run


def milliseconds(run: Callable[[], object]) -> float:
    """Median of a few runs, after one to warm up."""
    run()
    found = []
    for _ in range(TWICE):
        began = time.perf_counter()
        run()
        found.append((time.perf_counter() - began) * 1000)
    return median(found)


def write_log(path: Path, *, rows: int, piece: int = 500_000, first: int = 0) -> None:
    """A Parquet log in our own columns, with a candidate's pmf in `better`; first: number of its first id."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    names = arrow.array(["no_retrieval", "single_step", "multi_step"])
    listed = arrow.array([names.to_pylist()], arrow.list_(arrow.string()))
    writer: parquet.ParquetWriter | None = None
    for start in range(first, first + rows, piece):
        count = min(piece, first + rows - start)
        sample = Sample(count, seed=start)
        offsets = arrow.array(np.arange(0, (count + 1) * ARMS, ARMS, dtype=np.int32))
        table = arrow.table(
            {
                "id": arrow.array([f"q{number:09}" for number in range(start, start + count)]),
                "arms": arrow.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int32), listed).dictionary_decode(),
                "pmf": arrow.ListArray.from_arrays(offsets, arrow.array(sample.logged.ravel())),
                "arm": arrow.DictionaryArray.from_arrays(sample.action.astype(np.int32), names),
                "reward": arrow.array(sample.reward),
                "made_at": arrow.array(1.7e9 + np.arange(start, start + count, dtype=np.float64)),
                "version": arrow.array(["v1"] * count),
                "better": arrow.ListArray.from_arrays(offsets, arrow.array(sample.candidate.ravel())),
            }
        )
        writer = writer or parquet.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=65_536)
    if writer is not None:
        writer.close()


_LEAST = """
import sys, pyarrow.parquet as parquet, numpy as np
table = parquet.read_table(sys.argv[1], columns=["pmf", "arm", "reward", "better"])
logged = table["pmf"].combine_chunks().flatten().to_numpy().reshape(-1, 3)
better = table["better"].combine_chunks().flatten().to_numpy().reshape(-1, 3)
names = ["no_retrieval", "single_step", "multi_step"]
arm = table["arm"].combine_chunks()
codes = np.array([names.index(name) for name in arm.dictionary.to_pylist()])[arm.indices.to_numpy()]
rows = np.arange(len(codes))
print((better[rows, codes] / logged[rows, codes] * table["reward"].to_numpy()).mean())
"""


def spent(command: Sequence[str]) -> tuple[float, float]:
    """(seconds, peak memory in GiB) of a command."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024**2


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_speed", description=__doc__)
    parser.add_argument("--rows", type=int, default=LARGE, help="of the Parquet file")
    asked = parser.parse_args(arguments)
    sample = Sample(ROWS)
    mine, other = milliseconds(lambda: ours(sample)), theirs(sample)
    if other is None:
        Console().print(f"DR with interval, {ROWS:,} x {ARMS}: {mine:.1f} ms (obp is not installed: no baseline)")
    else:
        figure = Figure(
            name="DR with interval", ours=mine, baseline=milliseconds(other), unit="ms", against="OBP, 100 bootstraps"
        )
        print_figures(f"one candidate on {ROWS:,} rows x {ARMS} arms, in memory", [figure])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, rows=asked.rows)
        command = Path(sys.executable).with_name("ragbandit")
        seconds, memory = spent([str(command), "replay", "--log", str(path), "--policy", "column:better", "--json"])
        least_s, least_memory = spent([sys.executable, "-c", _LEAST, str(path)])
        print_figures(
            f"{asked.rows:,} rows from Parquet, the whole command",
            [
                Figure(name="seconds", ours=seconds, baseline=least_s, unit="s", against="read all, mean of w*r"),
                Figure(name="memory", ours=memory, baseline=least_memory, unit="GiB", against="read all, mean of w*r"),
            ],
        )


if __name__ == "__main__":
    main()
