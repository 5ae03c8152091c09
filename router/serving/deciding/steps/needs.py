"""Needs: arms that cannot do what a request needs are not offered. Arms that pass no chats on get only the question."""

from collections.abc import Iterator
from dataclasses import replace

from ragbandit.router.serving.abilities import EFFORT, no_arm_error, passing_arms, unmet_needs, without_chat
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.shared.types import Decision, LackingArms


class Needs(Step):
    def configure(self, served: ServedPolicy) -> None:
        settings = served.settings
        self.passing = passing_arms(settings.worker_arms, generators=settings.named_generators)

    def check(self, question: Question) -> None:
        lacking = unmet_needs(question.query, arms=question.allowed, passing=self.passing)
        if len(lacking) == len(question.allowed):
            raise no_arm_error(question.query, lacking=lacking, passing=self.passing)
        if lacking:
            left = [arm for arm in question.allowed if arm not in lacking]
            question.allow(left, cause="caller" if [EFFORT] in lacking.values() else "needs")  # callers limit efforts
            question.add(LackingArms(needs={arm: tuple(needs) for arm, needs in lacking.items()}))

    def after(self, batch: Batch) -> None:
        """Remove the chat from a decision whose arm does not pass chats on."""
        for question in batch.questions:
            decision = question.decision
            if decision is not None and decision.query.conversation.fields and decision.arm not in self.passing:
                question.decision = replace(decision, query=without_chat(decision.query))

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        lacking = LackingArms.of(decision.facts)
        for arm, needs in lacking.needs.items() if lacking is not None else ():
            yield f"Left out, since the request needs what it cannot do: {arm} ({', '.join(needs)})."
