"""Reasons: why this arm, in plain sentences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ragbandit.router.policies.draw import COLD_START_FLOOR, UNTRIED
from ragbandit.router.policies.holdback import HOLDBACK
from ragbandit.router.policies.restraint import INCUMBENT
from ragbandit.router.serving.deciding.prices import budget_factor, price_name
from ragbandit.router.serving.deciding.service import REBUILDING
from ragbandit.router.serving.explanations.chances import mapping_of, names_of
from ragbandit.router.serving.explanations.values import ArmChance, DrawShown
from ragbandit.router.serving.health.circuit_breaker import EXCLUDED_ARMS
from ragbandit.shared.types import CANDIDATE, KILLED, STICKY, ArmName, Decision, Json

#: facts that an explanation tells in its own words
OWN_FACTS: Final = frozenset(
    {
        CANDIDATE,
        KILLED,
        INCUMBENT,
        HOLDBACK,
        EXCLUDED_ARMS,
        REBUILDING,
        STICKY,
        COLD_START_FLOOR,
        UNTRIED,
        "quality",
        "cost",
    }
    | {"weight", "erased"}
)
#: how a part of a probability is called
_PARTS: Final = {
    "policy": "the policy",
    "floor": "the exploration floor",
    "cold_start": "the higher floor of a new arm",
    "incumbent": "the incumbent's share",
    "holdback": "the holdback, a standing share of the questions",
    "candidate": "the candidate",
    "given": "what was settled before any draw",
}


def excluded_of(decision: Decision) -> tuple[ArmName, ...]:
    """Arms that were not healthy when it was made."""
    return names_of(decision.facts.get(EXCLUDED_ARMS))


def reasons_of(decision: Decision, *, arms: Sequence[ArmChance], draw: DrawShown) -> tuple[str, ...]:
    """Why the arm was drawn, the main reason first."""
    return (
        *_given(decision, draw=draw),
        *_of_the_draw(decision, arms=arms, draw=draw),
        *_of_the_price(decision),
        *_of_the_policy(decision),
        *_of_versions(decision, arms=arms),
        *_of_the_offer(decision),
    )


def _given(decision: Decision, *, draw: DrawShown) -> Iterator[str]:
    """What came before any draw."""
    if draw.made_elsewhere:
        yield f"The decision came with an imported log: {decision.arm} was drawn elsewhere, and cannot be drawn again."
    sticky = mapping_of(decision.facts.get(STICKY))
    if sticky:
        yield (
            f"Turn {sticky.get('turn')} of {sticky.get('turns')} of the conversation stays on {decision.arm}, which "
            f"decision {sticky.get('first')} drew. It is no draw of its own."
        )
    killed = mapping_of(decision.facts.get(KILLED))
    if killed:
        pinned = killed.get("arm")
        here = "" if pinned == decision.arm else f", which this question does not allow, so that {decision.arm} plays"
        yield f"The kill switch was on with the arm {pinned} pinned{here}: no policy was asked, and nothing was drawn."
    if decision.query.forced:
        yield f"The caller chose {decision.arm}: nothing was drawn, and nothing is learned from it."


def _of_the_draw(decision: Decision, *, arms: Sequence[ArmChance], draw: DrawShown) -> Iterator[str]:
    drawn = next((arm for arm in arms if arm.drawn), None)
    if drawn is None:
        yield f"The row does not fit together: {draw.fault}."
        return
    if STICKY in decision.facts or KILLED in decision.facts or decision.query.forced:
        return
    if len(arms) == 1:
        yield f"{drawn.arm} was the only arm on offer, so it had probability 1."
        return
    likeliest = next(arm for arm in arms if arm.likeliest)
    if drawn.likeliest:
        alone = sum(arm.likeliest for arm in arms) == 1
        what = "the likeliest arm" if alone else "as likely as any arm"
        yield f"{drawn.arm} was {what}, with probability {drawn.probability:.4g}{_best(drawn, arms)}."
    else:
        yield (
            f"{drawn.arm} was drawn by chance, to explore: its probability was {drawn.probability:.4g}, that of the "
            f"likeliest arm, {likeliest.arm}, {likeliest.probability:.4g}."
        )
    if len(drawn.parts) > 1 or "policy" not in drawn.parts:
        parts = ", ".join(f"{part:.4g} from {_PARTS.get(name, name)}" for name, part in drawn.parts.items())
        yield f"Of that probability came {parts}."
    if not draw.made_elsewhere:
        yield f"The random draw u = {draw.u:.6f}, from the seed, fell in the range of {drawn.arm}: {_edges(drawn)}."
    if draw.fault is not None:
        yield f"The row does not fit together: {draw.fault}."


def _edges(arm: ArmChance) -> str:
    return f"from {arm.low:.6f} to {arm.high:.6f}"


def _best(drawn: ArmChance, arms: Sequence[ArmChance]) -> str:
    scores = [arm.score for arm in arms if arm.score is not None]
    if drawn.score is None or len(scores) != len(arms):
        return ""
    if drawn.score == max(scores):
        what = "the most of it" if scores.count(drawn.score) == 1 else "as much of it as of any"
        return f", and the policy expects {what} ({drawn.score:.4g})"
    best = max(arms, key=lambda arm: arm.score or 0.0)
    return f", though the policy expects more of {best.arm} ({best.score:.4g} against {drawn.score:.4g})"


def _of_the_price(decision: Decision) -> Iterator[str]:
    """The weight of cost, where it is not the service's."""
    if decision.cost_weight is None:
        return
    query, name = decision.query, price_name(decision.query)
    why = "as its caller wanted" if query.cost_weight is not None or query.aim else "as its key or tenant has it"
    named = "" if name is None else f" ({name})"
    factor = budget_factor(query)
    why += f", raised by the factor {factor:g} of a dollar budget" if factor > 1.0 else ""
    served = f"It was served at cost weight {decision.cost_weight:g}{named}, {why}"
    yield f"{served}; it is learned at that weight, and scores are read at it."


def _of_the_policy(decision: Decision) -> Iterator[str]:
    if decision.fault is not None:
        yield f"The policy failed, so the fallback arm had all but the floors. It said: {decision.fault}."
    if decision.facts.get(REBUILDING):
        yield "The configured policy was being learned again, and another one decided meanwhile."
    held = mapping_of(decision.facts.get(INCUMBENT))
    share = held.get("share")
    if isinstance(share, int | float) and share < 1.0:
        why = held.get("reason")
        yield (
            f"The policy was held back to the incumbent {held.get('arm')}: it had a share of {share:.4g} of the draw, "
            f"the incumbent the rest{f' ({why})' if why else ''}."
        )
    if untried := names_of(decision.facts.get(UNTRIED)):
        yield f"The policy had learned nothing of {', '.join(untried)} then: untried: no estimate yet."
    if decision.facts.get("untrained"):
        yield "The policy was not trained yet, so all arms were alike to it."


def _of_versions(decision: Decision, *, arms: Sequence[ArmChance]) -> Iterator[str]:
    first = mapping_of(decision.facts.get(CANDIDATE))
    others = first.get("others")
    for facts in (first, *(map(mapping_of, others) if isinstance(others, list) else ())):
        if facts:
            yield _of_version(facts, drawn=next((arm for arm in arms if arm.drawn), None))


def _of_version(facts: Mapping[str, Json], *, drawn: ArmChance | None) -> str:
    name, weight = facts.get("version"), facts.get("weight")
    if facts.get("fault"):
        return f"The candidate {name} had no part in the draw: {facts['fault']}."
    if facts.get("state") == "canary" and isinstance(weight, int | float):
        shares = ""
        if drawn is not None and drawn.champion is not None and drawn.candidate is not None:
            shares = f": the champion gave {drawn.arm} {drawn.champion:.4g}, the candidate {drawn.candidate:.4g}"
        return f"The draw was a mixture, {1.0 - weight:.4g} champion and {weight:.4g} candidate {name}{shares}."
    return f"The candidate {name} was in the shadow: what it would have done is kept, and had no part in the draw."


def _of_the_offer(decision: Decision) -> Iterator[str]:
    if excluded := excluded_of(decision):
        yield f"Left out, since they were not healthy: {', '.join(excluded)}."
    if decision.query.arms is not None and not decision.query.forced:
        yield f"The caller or its key allowed these arms alone: {', '.join(decision.query.arms)}."
