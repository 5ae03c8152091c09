"""Labels of questions, and the confusion matrix: which arm was chosen against which was the cheapest right one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ragbandit.router.comparison.assessment import NumberTable
from ragbandit.router.policies.finetuned.params import RIGHT
from ragbandit.shared.texts.formats import decimal
from ragbandit.shared.types import ArmName, Indices, Matrix

#: key of a group of questions for which no arm is right
NONE_RIGHT: Final = "none right"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelRow:
    """The questions with one label: how many, and the share of each arm among the chosen arms."""

    questions: int
    chosen: Mapping[ArmName, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Confusion:
    """The confusion matrix of a policy's choices."""

    #: label (cheapest right arm, or NONE_RIGHT) -> the arms chosen for its questions
    labels: Mapping[str, LabelRow]
    #: share of the questions with a label for which the label was chosen; None if no question has a label
    accuracy: float | None

    @property
    def accuracies(self) -> dict[str, float | None]:
        """Label -> share of its questions for which it was chosen; None if no question has this label."""
        known = {name: row for name, row in self.labels.items() if name != NONE_RIGHT}
        return {name: row.chosen[ArmName(name)] if row.questions else None for name, row in known.items()}

    def as_json(self) -> dict[str, Any]:
        labels = {name: {"questions": row.questions, "chosen": dict(row.chosen)} for name, row in self.labels.items()}
        return {"label_accuracy": self.accuracy, "accuracy_by_label": self.accuracies, "labels": labels}


def labels_of(quality: Matrix, *, cost: Matrix) -> Indices:
    """The label of each question, shape (n,): its cheapest right arm, the first of equals, and -1 if no arm is right.

    quality, cost: of every arm's answer, shape (n, K). An answer is right from the quality RIGHT on.
    """
    right = quality >= RIGHT
    cheapest = np.where(right, cost, np.inf).argmin(axis=1)
    return np.asarray(np.where(right.any(axis=1), cheapest, -1), dtype=np.intp)


def confusion_of(
    shares: Matrix, *, labels: Indices, arms: Sequence[ArmName], places: Indices | None = None
) -> Confusion:
    """The confusion matrix of these choices.

    shares: probability of each arm, shape (m, K). places: the question of each row, shape (m,); None if row i is
    question i. labels: labels of all questions, shape (n,).
    """
    of_rows = labels if places is None else labels[places]
    rows = {}
    for place, name in [*enumerate(arms), (-1, NONE_RIGHT)]:
        mine = shares[of_rows == place]
        means = mine.mean(axis=0).tolist() if len(mine) else [0.0] * len(arms)
        count = int((labels == place).sum())
        rows[str(name)] = LabelRow(questions=count, chosen=dict(zip(arms, means, strict=True)))
    with_label = of_rows >= 0
    accuracy = float(shares[with_label, of_rows[with_label]].mean()) if with_label.any() else None
    return Confusion(labels=rows, accuracy=accuracy)


def confusion_table(
    groups: Mapping[str, Mapping[str, LabelRow]], *, arms: Sequence[ArmName], chosen: str = "were chosen", on: str = ""
) -> NumberTable:
    """A line for each label that a question has. groups: router -> its labels; "" for the only one.

    chosen, on: words of the title that say by whom the arms were chosen, and on which questions.
    """
    lines = [
        (f"{router}: {label}".removeprefix(": ") + f" ({group.questions})", *_percents(group, arms=arms))
        for router, labels in groups.items()
        for label, group in labels.items()
        if group.questions
    ]
    head = "label" if {*groups} == {""} else "router: label"
    title = f"Confusion matrix in %{on}: for each label (rows), the arms that {chosen}"
    return NumberTable(title=title, columns=(head, *map(str, arms)), rows=tuple(lines))


def _percents(group: LabelRow, *, arms: Sequence[ArmName]) -> list[str]:
    return [decimal(100.0 * group.chosen[arm], 1) for arm in arms]
