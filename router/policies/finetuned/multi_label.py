"""The multi-label classifier of the MBA-RAG paper (arXiv 2412.01572, table 1): which arms would answer this right?

One sigmoid per arm, binary cross-entropy on the set of right arms. The paper then takes the arm of the highest
output, which costs nothing to it and so is nearly always the dearest arm: 4.51 mean steps of 4.69. Here cost has a
say: either the cheapest arm that is likely enough, or the best of p - weight * cost. Different too:

- DistilBERT in place of the paper's T5-large; a held-out share of the rows chooses the epoch.
- Questions that no arm answered are kept, with an empty set: the paper's file has none.
- The authors' script pairs the outputs of one file with the questions of another; nothing of that was kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from ragbandit.router.policies.base import Number, PolicyOutput, Share, epsilon_greedy, read_params
from ragbandit.router.policies.finetuned.body import RIGHT
from ragbandit.router.policies.finetuned.table_classifier import (
    FittingExample,
    FittingParams,
    Numbers,
    TableClassifier,
    exp,
)
from ragbandit.shared.types import ArmName, Json, TableRow

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiLabelParams(FittingParams):
    """Settings of multi_label."""

    #: "cheapest", the cheapest arm with p >= tau, or the likeliest where none is; or "net", the most of p - weight *
    #: cost
    choice: Literal["cheapest", "net"] = "cheapest"
    #: p from which an arm is likely enough
    tau: Share = 0.5
    #: weight of cost
    weight: Number = 0.03


class MultiLabel(TableClassifier):
    """P(right) per arm, then a choice that knows the cost: the mean steps of the arm in the training rows.

    Facts of a decision: "cheapest" logs "probability" per offered arm; "net" logs "quality" (p), "cost" and
    "weight", and its scores are the net values. An arm it was not trained on counts as wrong, and as dear as the
    dearest.
    """

    algorithm: ClassVar[str] = "multi_label"

    def __init__(self, **params: Json) -> None:
        settings = read_params(MultiLabelParams, given=params)
        super().__init__(settings)
        self.choice, self.tau, self.weight = settings.choice, settings.tau, settings.weight

    def _examples(self, rows: Sequence[TableRow], *, arms: Sequence[ArmName]) -> list[FittingExample]:
        """Questions without outcomes teach nothing here: hops do not say which arms are right."""
        missing = float("nan")
        return [
            FittingExample(
                text=row.question,
                target=tuple(float(row.correct[arm] >= RIGHT) if arm in row.correct else missing for arm in arms),
            )
            for row in rows
            if row.correct
        ]

    def _loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Binary cross-entropy over the entries that somebody knows."""
        import torch

        known = ~targets.isnan()
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[known], targets[known])

    def _judged(self, outputs: Numbers, targets: Numbers) -> tuple[float, float]:
        """Accuracy: the share of entries on the right side of p = 1/2."""
        known = ~np.isnan(targets)
        known_outputs, wanted = outputs[known], targets[known]
        loss = np.logaddexp(0.0, known_outputs) - wanted * known_outputs
        return float(((known_outputs > 0.0) == (wanted > 0.5)).mean()), float(loss.mean())

    def _merit(self, accuracy: float, loss: float) -> tuple[float, ...]:
        """The loss decides: a choice by cost needs probabilities that are true, not only on the right side."""
        return -loss, accuracy

    def _probabilities(self, outputs: Numbers) -> Numbers:
        probabilities: Numbers = exp(-np.logaddexp(0.0, -outputs))
        return probabilities

    def _word(self, known: Mapping[ArmName, tuple[float, float]], *, arms: Sequence[ArmName]) -> PolicyOutput:
        dearest = max(cost for _, cost in known.values())
        pairs = [known.get(arm, (0.0, dearest)) for arm in arms]
        likely = [p for p, _ in pairs]
        if self.choice == "net":
            scores = tuple(p - self.weight * cost for p, cost in pairs)
            facts = {"quality": likely, "cost": [cost for _, cost in pairs], "weight": self.weight}
            return PolicyOutput(pmf=epsilon_greedy(scores, epsilon=0.0), scores=scores, facts=facts)
        fit = [-cost if p >= self.tau and arm in known else -np.inf for arm, (p, cost) in zip(arms, pairs, strict=True)]
        ranks = likely if max(fit) == -np.inf else fit
        return PolicyOutput(pmf=epsilon_greedy(ranks, epsilon=0.0), facts={"probability": likely})
