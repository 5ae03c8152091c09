"""Adaptive-RAG: a classifier says how complex a question is, and so which arm it gets (arXiv 2403.14403, section 3).

Labels as in section 3.2: the cheapest arm that answered right ("silver"); where none did, the inductive bias of the
question's making: one hop needs the single retrieval, more need the multi-step arm. Kept from the authors' training:
AdamW at 3e-5 without weight decay, linear decay without warm-up, batches of 32, the best epoch on held-out rows,
accuracy first. Different, on purpose:

- DistilBERT with one output per arm in place of T5-large that writes a letter; the most likely arm either way.
- The held-out rows are taken from the rows given. The authors' are the test questions.
- Inductive labels go to the rows that no arm solved, as the paper says; the authors' code gives them to other
  questions instead (`ragbandit policy train --questions` adds such).
- An arm's cost is the steps it took in its row, so that any set of arms has a cheapest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ragbandit.router.policies.base import MULTI_STEP, SINGLE_STEP, ArmParam, PolicyOutput, epsilon_greedy, read_params
from ragbandit.router.policies.finetuned.body import RIGHT
from ragbandit.router.policies.finetuned.table_classifier import (
    FittingExample,
    FittingParams,
    Numbers,
    TableClassifier,
    exp,
    log,
)
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
        return -(targets * outputs.log_softmax(1)).sum(1).mean()

    def _judged(self, outputs: Numbers, targets: Numbers) -> tuple[float, float]:
        hits = outputs.argmax(1) == targets.argmax(1)
        return float(hits.mean()), float(-(targets * _log_softmax(outputs)).sum(1).mean())

    def _merit(self, accuracy: float, loss: float) -> tuple[float, ...]:
        return accuracy, -loss

    def _probabilities(self, outputs: Numbers) -> Numbers:
        probabilities: Numbers = exp(_log_softmax(outputs))
        return probabilities

    def _word(self, known: Mapping[ArmName, tuple[float, float]], *, arms: Sequence[ArmName]) -> PolicyOutput:
        likely = [known[arm][0] if arm in known else 0.0 for arm in arms]
        return PolicyOutput(pmf=epsilon_greedy(likely, epsilon=0.0), facts={"probability": likely})


def _log_softmax(outputs: Numbers) -> Numbers:
    """Over the last axis."""
    shifted = outputs - outputs.max(-1, keepdims=True)
    logarithms: Numbers = shifted - log(exp(shifted).sum(-1, keepdims=True))
    return logarithms
