"""Confusion matrix: of the questions with one label, the share that each arm gets.

Adaptive-RAG's figure 3 and tables 4 and 6, MBA-RAG's figure 2: the label of a question is its cheapest right arm.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ragbandit.shared.types import ArmName, Matrix

Label = TypeVar("Label", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelShares(Generic[Label]):
    """The questions with one label."""

    #: None: those that have none
    label: Label | None
    questions: int
    #: arm -> share of these questions that it gets; they sum to 1
    arms: dict[ArmName, float]
    #: mean seconds of an answer; None where they are not known
    seconds: float | None = None


def shares_by_label(
    labels: Sequence[Label | None],
    *,
    shares: Matrix,
    arms: Sequence[ArmName],
    order: Sequence[Label],
    seconds: Matrix | None = None,
) -> list[LabelShares[Label]]:
    """A row per label that some question has, in this order, then one of the questions without a label.

    labels: n of them. shares: shape (n, arms), each row a distribution. order: all labels that occur; no row at all
    where it is empty. seconds: of every answer, shape (n, arms).
    """
    if not order:
        return []
    spent = None if seconds is None else (shares * seconds).sum(axis=1)
    rows = []
    for label in (*order, None):
        places = [place for place, one in enumerate(labels) if one == label]
        if places:
            means = np.asarray(shares)[places].mean(axis=0)
            by_arm = dict(zip(arms, map(float, means), strict=True))
            mean = None if spent is None else float(spent[places].mean())
            rows.append(LabelShares(label=label, questions=len(places), arms=by_arm, seconds=mean))
    return rows
