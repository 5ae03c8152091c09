"""Trains a policy on a table, and judges its choices on the rows that it held out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ragbandit.router.comparison.assessment import NumberTable
from ragbandit.router.offline.labels import Confusion, confusion_of, confusion_table, labels_of
from ragbandit.router.offline.logs.tables import missing_steps, table_query
from ragbandit.router.offline.passes import greedy_shares
from ragbandit.router.policies import built_in_policies, make_policy
from ragbandit.router.policies.base import TableTrained, held_out_rows
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import free_folder
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import ArmName, Json, TableRow

#: rows on which a trained policy is judged
HELD_OUT, TRAINING = "held-out", "training"


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    #: facts of the fit, with "folder" and "sha256"
    report: Mapping[str, Json]
    #: choices on `questions` rows of the table; the label of a row is the right arm with the fewest steps
    confusion: Confusion
    questions: int
    #: HELD_OUT, or TRAINING if the policy held out no row with outcomes
    judged_on: str
    arms: tuple[ArmName, ...]

    def as_json(self) -> dict[str, Json]:
        confusion = {"judged_on": self.judged_on, "questions": self.questions, **self.confusion.as_json()}
        return {**self.report, "confusion": confusion}

    @property
    def judged_rows(self) -> str:
        """The judged rows in words, such as "12 held-out rows"."""
        return counted(self.questions, f"{self.judged_on} row")

    def table(self) -> NumberTable:
        return confusion_table({"": self.confusion.labels}, arms=self.arms, on=f" on {self.judged_rows}")


def trainable_policies() -> list[str]:
    return [name for name, kind in built_in_policies().items() if hasattr(kind, "fit")]


def train(
    policy: str,
    *,
    params: Mapping[str, Json],
    rows: Sequence[TableRow],
    out: str | Path,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Training:
    """Train a policy on these rows, write its folder, and judge its choices.

    params: params of the policy. Those that serving needs must be configured too.
    rows: rows of a table, which all have the same arms, and rows without outcomes.
    progress: receives (number of batches done, total).
    Raises ConfigError before the training; InvalidInput if no row has a label, or a row with outcomes has no steps.
    """
    names = trainable_policies()
    if policy not in names:
        remedy = f"use one of {', '.join(names)}"
        raise ConfigError(f"{policy!r} is not trained on tables", field="policy", remedy=remedy)
    if params.get("trained") is not None:
        message = "the trained folder is the output of this command"
        raise ConfigError(message, field="policy.params.trained", remedy="leave this param out")
    if any(row.correct and not row.steps for row in rows):
        raise missing_steps()
    target = free_folder(out)
    made = make_policy(policy, params=params)
    assert isinstance(made, TableTrained)
    report = made.fit(rows, progress=progress)
    saved = {**report, "folder": str(target), "sha256": made.save(target)}
    return _judge_choices(made, rows=rows, report=saved)


def _judge_choices(policy: TableTrained, *, rows: Sequence[TableRow], report: Mapping[str, Json]) -> Training:
    held_out = [row for row in held_out_rows(policy) if row.correct]
    judged = held_out or [row for row in rows if row.correct]
    arms = tuple(judged[0].correct)
    shares, _ = greedy_shares(policy, [table_query(row) for row in judged], features=None, arms=arms)
    quality, steps = (
        np.array([[amounts[arm] for arm in arms] for amounts in by_row], dtype=np.float64).reshape(-1, len(arms))
        for by_row in ([row.correct for row in judged], [row.steps for row in judged])
    )
    return Training(
        report=report,
        confusion=confusion_of(shares, labels=labels_of(quality, cost=steps), arms=arms),
        questions=len(judged),
        judged_on=HELD_OUT if held_out else TRAINING,
        arms=arms,
    )
