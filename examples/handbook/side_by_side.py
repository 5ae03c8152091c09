"""Arms side by side: a sample with equally many questions of every kind, and tables of each arm's results."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Printed

from ragbandit.examples.handbook.command import Row
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.offline.passes import mean_and_error
from ragbandit.shared.types import Matrix

#: what a question of the handbook needs, in words
KINDS: Final[Mapping[str, str]] = {"none": "no passage", "one": "one passage", "two": "two passages"}
LEGEND: Final = (
    "mean ± standard error over questions; a failed answer is wrong\nStep: rounds of search and generation; "
    "Time: seconds over those of single_step; read, written: tokens"
)


def rewards_of(table: LabelledTable, *, reward: RewardSettings) -> Matrix:
    """Reward of every arm, shape (n, arms), as `ragbandit.router.learning.reward` computes it."""
    price = reward.cost.get("steps", 0.0)
    return np.clip(table.correct - reward.weight * (price * table.steps), reward.minimum, reward.maximum)


def sampled(questions: Sequence[Row], *, each: int, by: str) -> list[Row]:
    """At most `each` questions for every value of the key `by`, drawn with a fixed seed; the values take turns.

    A larger sample contains the smaller samples, so that it reuses their stored answers.
    """
    groups: dict[str, list[Row]] = {}
    for row in questions:
        groups.setdefault(row[by], []).append(row)
    drawn = [Random(name).sample(rows, len(rows))[:each] for name, rows in groups.items()]
    return [rows[place] for place in range(each) for rows in drawn if place < len(rows)]


def main_table(rows: Sequence[Row], *, title: str) -> Printed:
    """A table with a line for each row that `ragbandit evaluate --json` printed."""
    heads = ("EM %", "F1 %", "Acc %", "Step", "Time", "read", "written", "failed")
    table = _table("strategy", *heads, title=title)
    for row in rows:
        table.add_row(
            row["strategy"],
            *(_said(row, name, scale=100, digits=1) for name in ("exact_match", "f1", "accuracy")),
            *(_said(row, name, digits=2) for name in ("steps", "time")),
            *(_said(row, name, digits=0) for name in ("prompt_tokens", "completion_tokens")),
            str(row["failed"]),
        )
    return table


def ended(rows: Sequence[Row]) -> list[str]:
    """A line for people on answers that the budget ended, if there are any."""
    counts = ", ".join(f"{row['strategy']} {row['exhausted']}" for row in rows if row["exhausted"])
    return [f"ended by the budget and judged by their drafts: {counts}"] if counts else []


def by_kind(table: LabelledTable, *, kinds: Mapping[str, str], reward: RewardSettings) -> list[Row]:
    """A row per arm, and one of the oracle, which takes the arm of the best reward for every question.

    kinds: the id of a question -> its kind. Each row has the share right of every kind and of all ("right"), the
    "steps" and the "reward", each with its standard error under "<name>_se", None for one question.
    """
    rewards, count = rewards_of(table, reward=reward), len(table.arms)
    everywhere = np.eye(count)
    chosen = {str(arm): np.tile(everywhere[place], (len(table.rows), 1)) for place, arm in enumerate(table.arms)}
    cheapest = np.where(rewards == rewards.max(axis=1, keepdims=True), table.steps, np.inf).argmin(axis=1)
    chosen["oracle"] = everywhere[cheapest]  # the cheapest arm with the highest reward
    needs = [kinds[row.id] for row in table.rows]
    return [
        {"strategy": name, **_row(shares, table=table, rewards=rewards, needs=needs)} for name, shares in chosen.items()
    ]


def _row(shares: Matrix, *, table: LabelledTable, rewards: Matrix, needs: Sequence[str]) -> Row:
    """The row of arms chosen with these shares, shape (n, arms)."""
    right, steps, reward = ((shares * values).sum(axis=1) for values in (table.correct, table.steps, rewards))
    groups = {kind: [value for value, need in zip(right, needs, strict=True) if need == kind] for kind in KINDS}
    row: Row = {}
    for name, values in (groups | {"right": right, "steps": steps, "reward": reward}).items():
        row[name], row[f"{name}_se"] = mean_and_error([float(value) for value in values])
    return row


def kinds_table(rows: Sequence[Row], *, title: str) -> Printed:
    """A table of rows of `by_kind`, or of rows with some of their keys."""
    table = _table("", *KINDS.values(), "all", "steps", "reward", title=title)
    for row in rows:
        table.add_row(row["strategy"], *(_said(row, name, digits=2) for name in (*KINDS, "right", "steps", "reward")))
    return table


def print_wide(table: Printed, *, console: Console) -> None:
    """Print the table without cutting its columns, also into a pipe."""
    wide = Measurement.get(console, console.options.update(width=1000), table).maximum
    Console(file=console.file, width=max(wide, console.width), emoji=False).print(table)


def _table(first: str, *heads: str, title: str) -> Printed:
    table = Printed(first, *heads, title=title)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    return table


def _said(row: Row, name: str, *, scale: float = 1.0, digits: int) -> str:
    """The mean and its standard error, if the row has them; "" without a mean."""
    value, error = row.get(name), row.get(f"{name}_se")
    if value is None:
        return ""
    said = f"{scale * value:.{digits}f}"
    return said if error is None else f"{said} ± {scale * error:.{digits}f}"
