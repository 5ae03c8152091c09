"""Rebuilding: notes the decisions of an interim policy, while the configured one is learned again from its ledger."""

from collections.abc import Iterator

from ragbandit.router.serving.deciding.steps.step import Batch, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.shared.types import Decision, Rebuilding


class RebuildingStep(Step):
    def configure(self, served: ServedPolicy) -> None:
        self.is_on = served.rebuilding

    def after(self, batch: Batch) -> None:
        if batch.served.rebuilding and batch.policy is batch.served.policy:  # not if an arm is pinned
            for question in batch.questions:
                question.add(Rebuilding())

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        if Rebuilding.of(decision.facts) is not None:
            yield "The configured policy was being learned again, and another one decided meanwhile."
