"""Incumbent: a safe start holds the policy back to one arm until the policy is known to do no harm (policy.incumbent).

The draw itself holds the policy back (policies/draw.py `with_incumbent`), since replay and audits draw in the same way.
A spent budget comes before the safe start: the operator has set what may be spent, so the cheapest arm answers, and the
row does not count against the incumbent.
"""

from collections.abc import Iterator

from ragbandit.router.config.settings import LEAST_SHARE
from ragbandit.router.policies import CONSERVATIVE
from ragbandit.router.serving.deciding.steps.step import Batch, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.shared.types import MOST_FACTOR, Decision, SafeStart


class IncumbentStep(Step):
    def configure(self, served: ServedPolicy) -> None:
        policy = served.settings.policy
        self.is_on = policy.incumbent is not None or policy.name == CONSERVATIVE

    def before(self, batch: Batch) -> None:
        for question in batch.questions:
            question.released = question.query.terms.budget_factor >= MOST_FACTOR

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        fact = SafeStart.of(decision.facts)
        if fact is not None and fact.released:
            spent = "A budget is spent, and comes before the safe start: the policy decided alone at the raised price"
            yield f"{spent}. The answer does not count in what may be lost against {fact.arm or 'the incumbent'}."
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
        if decision.cost_weight is not None:
            yield "What may be lost is counted at reward.weight, not at the price of this question."
