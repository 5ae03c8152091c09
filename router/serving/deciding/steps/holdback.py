"""Holdback: one arm has a share of every draw, so that the policy can be compared with it (policy.holdback).

The draw itself gives the share (policies/draw.py `with_holdback`), since replay and audits draw in the same way.
"""

from collections.abc import Iterator

from ragbandit.router.serving.deciding.steps.step import Step
from ragbandit.shared.types import Decision, HoldbackShare


class HoldbackStep(Step):
    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        if (fact := HoldbackShare.of(decision.facts)) is not None:
            falls = "" if fact.then is None else f" It falls to {fact.then}, since {fact.learned} answers were learned."
            if fact.first == fact.share and fact.until is not None:
                falls = f" It falls to {fact.then} once {fact.until} of its answers are learned."
            yield f"The holdback gives {fact.arm} a share of every draw, {fact.share:.3g}.{falls}"
