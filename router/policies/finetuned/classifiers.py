"""`adaptive_rag` and `multi_label`: which arm a question needs, by a classifier that was trained on a table.

Adaptive-RAG (arXiv 2403.14403, section 3): a classifier says how complex a question is, and so which arm it gets.
Labels as in section 3.2: the cheapest arm that answered right ("silver"); where none did, one hop needs the single
retrieval, more need the multi-step arm. Different, on purpose: DistilBERT in place of T5-large that writes a letter;
held-out rows of the rows given, where the authors' are the test questions; inductive labels for the rows that no arm
solved, as the paper says (the authors' code gives them to other questions; `policy train --questions` adds such); an
arm's cost is the steps it took in its row.

The multi-label classifier of the MBA-RAG paper (arXiv 2412.01572, table 1): one sigmoid per arm, binary cross-entropy
on the set of right arms. The paper takes the arm of the highest output, which costs nothing to it and so is nearly
always the dearest arm: 4.51 mean steps of 4.69. Here cost has a say. Questions that no arm answered are kept, with an
empty set: the paper's file has none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from ragbandit.router.policies.base import (
    MULTI_STEP,
    SINGLE_STEP,
    ArmParam,
    Number,
    PolicyOutput,
    Share,
    epsilon_greedy,
    read_params,
)
from ragbandit.router.policies.finetuned.network import RIGHT, Numbers
from ragbandit.router.policies.finetuned.table_classifier import FittingExample, FittingParams, TableClassifier
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import ArmName, Json, TableRow

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveRagParams(FittingParams):
    """Settings of adaptive_rag."""

    #: the arm of questions with one hop, where no arm was right
    single: ArmParam = SINGLE_STEP
    #: the arm of questions with more hops, where no arm was right
    multi: ArmParam = MULTI_STEP


class AdaptiveRag(TableClassifier):
    """Softmax over the table's arms; the most likely of the offered ones is drawn.

    Facts of a decision: "probability", per offered arm, of being the cheapest
    right one. They are no values in units of reward, so there are no scores.
    """

    algorithm: ClassVar[str] = "adaptive_rag"
    least_loss: ClassVar[bool] = False

    def __init__(self, **params: Json) -> None:
        settings = read_params(AdaptiveRagParams, given=params)
        super().__init__(settings)
        # Arms of the table: `fit` compares them with its rows. They are not among those that it may draw.
        self.single, self.multi = settings.single, settings.multi

    def _examples(self, rows: Sequence[TableRow], *, arms: Sequence[ArmName]) -> list[FittingExample]:
        examples = []
        for row in rows:
            right = [arm for arm, quality in row.correct.items() if quality >= RIGHT]
            label = min(right, key=lambda arm: row.steps[arm]) if right else self._by_hops(row, arms=arms)
            if label is not None:
                target = tuple(float(arm == label) for arm in arms)
                examples.append(FittingExample(text=row.question, target=target, inductive=not right))
        return examples

    def _by_hops(self, row: TableRow, *, arms: Sequence[ArmName]) -> ArmName | None:
        if not row.hops:
            return None
        name, arm = ("single", self.single) if row.hops == 1 else ("multi", self.multi)
        if arm not in arms:
            raise ConfigError(
                f"{arm!r} is not among the table's arms",
                field=f"policy.params.{name}",
                remedy=f"use one of {', '.join(arms)}",
            )
        return arm

    def _loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Cross-entropy."""
        import torch

        return torch.nn.functional.cross_entropy(outputs, targets)

    def _accuracy(self, outputs: "Tensor", targets: "Tensor") -> float:
        return float((outputs.argmax(1) == targets.argmax(1)).float().mean())

    def _probabilities(self, outputs: Numbers) -> Numbers:
        likely: Numbers = np.exp(outputs - np.logaddexp.reduce(outputs))
        return likely

    def _choice(self, known: Mapping[ArmName, tuple[float, float]], *, arms: Sequence[ArmName]) -> PolicyOutput:
        likely = [known[arm][0] if arm in known else 0.0 for arm in arms]
        return PolicyOutput(pmf=epsilon_greedy(likely, epsilon=0.0), facts={"probability": likely})


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
    least_loss: ClassVar[bool] = True  # a choice by cost needs probabilities that are true, not only on the right side

    def __init__(self, **params: Json) -> None:
        settings = read_params(MultiLabelParams, given=params)
        super().__init__(settings)
        self.choice, self.tau, self.weight = settings.choice, settings.tau, settings.weight

    def _examples(self, rows: Sequence[TableRow], *, arms: Sequence[ArmName]) -> list[FittingExample]:
        """Questions without outcomes teach nothing here: hops do not say which arms are right."""

        def target(row: TableRow) -> tuple[float, ...]:
            return tuple(float(row.correct[arm] >= RIGHT) if arm in row.correct else math.nan for arm in arms)

        return [FittingExample(text=row.question, target=target(row)) for row in rows if row.correct]

    def _loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Binary cross-entropy over the entries that somebody knows."""
        import torch

        known = ~targets.isnan()
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[known], targets[known])

    def _accuracy(self, outputs: "Tensor", targets: "Tensor") -> float:
        """The share of known entries on the right side of p = 1/2."""
        known = ~targets.isnan()
        return float(((outputs[known] > 0.0) == (targets[known] > 0.5)).float().mean())

    def _probabilities(self, outputs: Numbers) -> Numbers:
        likely: Numbers = np.exp(-np.logaddexp(0.0, -outputs))
        return likely

    def _choice(self, known: Mapping[ArmName, tuple[float, float]], *, arms: Sequence[ArmName]) -> PolicyOutput:
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
