"""Sentences about the shares that the draw gives to one arm: a holdback (policy.holdback), and the incumbent of a safe
start (policy.incumbent), which holds the policy back until it is known to do no harm.

The draw itself gives the shares (policies/draw.py), since replay and audits draw in the same way. A spent budget comes
before the safe start: the operator has set what may be spent, so the cheapest arm answers, and the row does not count
against the incumbent. The share of a holdback is fixed, so the draw applies it last.
"""

from collections.abc import Iterator

from ragbandit.router.config.learning import LEAST_SHARE
from ragbandit.shared.types import Decision, HoldbackShare, SafeStart


def share_sentences(decision: Decision) -> Iterator[str]:
    """Sentences about the shares in a decision's draw, also in one whose facts are missing or damaged."""
    yield from _of_safe_start(decision)
    if (fact := HoldbackShare.of(decision.facts)) is not None:
        falls = "" if fact.then is None else f" It falls to {fact.then}, since {fact.learned} answers were learned."
        if fact.first == fact.share and fact.until is not None:
            falls = f" It falls to {fact.then} once {fact.until} of its answers are learned."
        yield f"The holdback gives {fact.arm} a share of every draw, {fact.share:.3g}.{falls}"


def _of_safe_start(decision: Decision) -> Iterator[str]:
    fact = SafeStart.of(decision.facts)
    if fact is not None and fact.released:
        spent = "A budget is spent, and comes before the safe start: the policy decided alone at the raised price"
        yield f"{spent}. The answer does not count in what may be lost against {fact.arm or 'the incumbent'}."
    if fact is None or fact.share >= 1.0:
        return
    why = fact.reason or "it holds the policy back"
    why = f"too few answers of {fact.arm} are rated yet" if why == "too few outcomes of it are learned" else why
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
