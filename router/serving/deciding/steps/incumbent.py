"""Incumbent: a safe start holds the policy back to one arm until the policy is known to do no harm (policy.incumbent).

The draw itself holds the policy back (policies/draw.py `with_incumbent`), since replay and audits draw in the same way.
"""

from collections.abc import Iterator

from ragbandit.router.config.settings import LEAST_SHARE
from ragbandit.router.serving.deciding.steps.step import Step
from ragbandit.shared.types import Decision, SafeStart


class IncumbentStep(Step):
    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        fact = SafeStart.of(decision.facts)
        if fact is None or fact.share >= 1.0:
            return
        why = fact.reason or "it holds the policy back"
        why = "too few of its answers are rated yet" if why == "too few outcomes of it are learned" else why
        if fact.share == 0.0:
            yield f"The safe start gave this question to {fact.arm}: {why}."
        else:
            shares = f"the policy had a share of {fact.share:.4g} of the draw, {fact.arm} the rest"
            yield f"The safe start held the policy back to {fact.arm}: {shares} ({why})."
            if 0.0 in decision.pmf:
                least = f"{LEAST_SHARE:g} in its turns, which follow from the decision's seed, and 0 in the others"
                yield f"An arm that would have had less than {LEAST_SHARE:g} has {least}."
