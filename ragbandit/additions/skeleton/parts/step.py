"""A guard, a step of deciding: callers in a hurry get one of the first two arms."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.hooks import Step
from ragbandit.router.serving.deciding.steps.step import Batch
from ragbandit.shared.types import Decision, Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnFact(Fact):
    key: ClassVar[str] = "own"
    left_out: int


class OwnStep(Step):
    follows = "Tasks"

    def before(self, batch: Batch) -> None:
        for question in batch.questions:
            if question.is_drawn and question.query.context.get("hurry") and len(question.arms) > 2:
                question.add(OwnFact(left_out=len(question.arms) - 2))
                question.arms = question.arms[:2]

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        if fact := OwnFact.of(decision.facts):
            yield f"Left out, since the caller was in a hurry: {fact.left_out} arms."
