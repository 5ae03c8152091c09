"""Confusion matrix: how often each arm is drawn for the questions with the same label.

In Adaptive-RAG's figure 3 and tables 4 and 6, and in MBA-RAG's figure 2, a question's label is its cheapest right arm.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ragbandit.shared.types import ArmName, Matrix

Label = TypeVar("Label", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelShares(Generic[Label]):
    label: Label | None
    questions: int
    #: arm -> its mean probability for these questions
    arms: dict[ArmName, float]
    #: mean seconds of an answer to these questions; None if unknown
    seconds: float | None = None


def shares_by_label(
    labels: Sequence[Label | None],
    *,
    shares: Matrix,
    arms: Sequence[ArmName],
    order: Sequence[Label],
    seconds: Matrix | None = None,
) -> list[LabelShares[Label]]:
    """The matrix: a row for each label that occurs, in the order of `order`, then a row for questions without a label.

    shares: probability of each arm for each question, (questions, arms)
    order: all labels
    seconds: seconds of each arm's answer to each question, (questions, arms)
    """
    spent = None if seconds is None else (shares * seconds).sum(axis=1)
    rows = []
    for label in (*order, None):
        places = [place for place, question_label in enumerate(labels) if question_label == label]
        if places:
            by_arm = dict(zip(arms, map(float, np.asarray(shares)[places].mean(axis=0)), strict=True))
            mean = None if spent is None else float(spent[places].mean())
            rows.append(LabelShares(label=label, questions=len(places), arms=by_arm, seconds=mean))
    return rows
