"""`ragbandit replay` on ten million rows of a Parquet file, and on a store of 300,000 decisions, 30 % of them learned.

Seconds and memory of the whole command; for the store, seconds of processor time. Baseline: the least that anybody
must do who judges the rows in memory: read the columns and take the mean of weight * reward.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, print_figures

ARMS = 3
LARGE = 10_000_000
DECISIONS = 300_000

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


_LEAST_OF_STORE = """
import json, sqlite3, sys, numpy as np
rows = sqlite3.connect(sys.argv[1]).execute(
    "SELECT arms, pmf, decisions.arm, value FROM updates JOIN decisions ON decisions.id = decision_id"
)
weighted = [
    (arm == "b") / json.loads(pmf)[json.loads(arms).index(arm)] * value for arms, pmf, arm, value in rows
]
print(np.mean(weighted))
"""


def spent(command: Sequence[str]) -> tuple[float, float, float]:
    """(seconds, seconds of processor time, peak memory in GiB) of a command."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024**2


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_speed", description=__doc__)
    parser.add_argument("--rows", type=int, default=LARGE, help="rows of the Parquet file; 0: no file")
    parser.add_argument("--decisions", type=int, default=DECISIONS, help="decisions of the store; 0: no store")
    asked = parser.parse_args()
    if asked.rows:
        print_file(asked.rows)
    if asked.decisions:
        print_store(asked.decisions)


def print_file(rows: int) -> None:
    """Print the table of a Parquet file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, rows=rows)
        command = Path(sys.executable).with_name("ragbandit")
        seconds, _, memory = spent([str(command), "replay", "--log", str(path), "--policy", "column:better", "--json"])
        least_s, _, least_memory = spent([sys.executable, "-c", _LEAST, str(path)])
        print_figures(
            f"{rows:,} rows from Parquet, the whole command",
            [
                Figure(name="seconds", ours=seconds, baseline=least_s, unit="s", against="read all, mean of w*r"),
                Figure(name="memory", ours=memory, baseline=least_memory, unit="GiB", against="read all, mean of w*r"),
            ],
        )


def print_store(count: int) -> None:
    """Print the table of a store on SQLite."""
    from benchmarks import scale  # only now: the memory of this process counts as memory of the commands above

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        database = home / "ragbandit.db"
        scale.fill(f"sqlite:///{database}", templates=scale.Templates(home / "templates"), count=count)
        (home / "config.yaml").write_text(json.dumps({**scale.CONFIG, "data_dir": folder}), encoding="utf-8")
        command = Path(sys.executable).with_name("ragbandit")
        given = ["--policy", "fixed:b", "--json", "--config", str(home / "config.yaml")]
        _, seconds, _ = spent([str(command), "replay", *given])
        _, least_s, _ = spent([sys.executable, "-c", _LEAST_OF_STORE, str(database)])
        print_figures(
            f"{count:,} decisions from the store, 30 % learned, the whole command",
            [Figure(name="processor time", ours=seconds, baseline=least_s, unit="s", against="read all, mean of w*r")],
        )


if __name__ == "__main__":
    main()
