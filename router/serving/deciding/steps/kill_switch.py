"""Kill switch: while an arm is pinned, every question gets it, and no policy and no candidate is asked."""

from collections.abc import Iterator
from dataclasses import replace

from ragbandit.router.policies.algorithms.fixed import Uniform
from ragbandit.router.policies.draw import fallback_arm
from ragbandit.router.serving.deciding.steps.step import Batch, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.shared.types import ArmName, Decision, PinnedArm


class KillSwitch(Step):
    def configure(self, served: ServedPolicy) -> None:
        self._fallback = served.settings.policy.fallback

    def before(self, batch: Batch) -> None:
        control = batch.live.control
        if control.killed != "arm":
            return
        pinned = ArmName(str(control.arm))
        batch.policy = Uniform()
        for question in batch.questions:
            is_allowed = pinned in question.allowed
            question.certain_arm = pinned if is_allowed else fallback_arm(self._fallback, arms=question.allowed)
            question.note_choice("kill switch")
            question.add(PinnedArm(arm=pinned, revision=control.revision))

    def after(self, batch: Batch) -> None:
        for question in batch.questions:
            if PinnedArm in question.facts and question.certain_arm is not None:
                question.settle(question.certain_arm)
                assert question.decision is not None
                question.decision = replace(question.decision, facts={})  # without facts of a draw: nothing was drawn

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        pinned = PinnedArm.of(decision.facts)
        if pinned is not None:
            is_played = pinned.arm == decision.arm
            note = "" if is_played else f", which this question does not allow, so that {decision.arm} plays"
            switch = f"The kill switch was on with the arm {pinned.arm} pinned"
            yield f"{switch}{note}: no policy was asked, and nothing was drawn."
