"""The draw: from a policy's pmf to a decision, through gate, floor and seeded choice; live and offline use the same."""

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.base import Policy, PolicyOutput, Restraint
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import ArmName, Decision, DecisionId, FeatureRows, Features, Json, PolicyLabel, Query, RunBy

#: the key of a decision's facts with the cold-start floors of its draw: arm -> floor
COLD_START_FLOOR: Final = "cold_start_floor"
#: the fact that names the offered arms of which the policy had learned nothing
UNTRIED: Final = "untried"

#: the key of a decision's facts with the holdback of its draw: arm, share, and the floor that its arms had before it
HOLDBACK: Final = "holdback"
#: the key of a decision's facts with what held it back: arm, share, slack, reason, floor
INCUMBENT: Final = "incumbent"

#: the arm that plays where the settings name none
_FALLBACK: Final = "single_step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdback:
    """The arm, and its share of the questions, in (0, 1)."""

    arm: ArmName
    share: float

    def applies(self, arms: Sequence[ArmName]) -> bool:
        """Whether it has a part in a draw from these arms: its arm is offered, beside another one."""
        return len(arms) > 1 and self.arm in arms

    def facts(self, *, floor: float) -> dict[str, Json]:
        """What the row says of it. floor: the least probability before it."""
        return {"arm": self.arm, "share": self.share, "floor": floor}


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """The arm that one question got, and all that was in the draw."""

    #: place of the arm among the offered ones
    index: int
    #: probability of every offered arm, after the floor
    pmf: tuple[float, ...]
    #: least probability of every offered arm in that pmf
    floor: float
    scores: tuple[float, ...] | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)
    #: why the fallback's pmf was drawn from; None when it was the policy's own
    fault: str | None = None


def gate(output: PolicyOutput, *, arms: Sequence[ArmName]) -> tuple[float, ...]:
    """The pmf, normalised exactly, or PolicyFault if it is not a pmf over these arms."""
    pmf = tuple(float(p) for p in output.pmf)
    if len(pmf) != len(arms):
        raise PolicyFault(f"pmf has {len(pmf)} entries for {len(arms)} arms")
    if not all(math.isfinite(p) and p >= 0.0 for p in pmf):
        raise PolicyFault(f"pmf has an entry that is negative or not finite: {pmf}")
    total = math.fsum(pmf)
    # 1e-6 lets float32 policies through; what passes is normalised, so that the log sums to 1 in float64.
    if abs(total - 1.0) > 1e-6:
        raise PolicyFault(f"pmf sums to {total!r}, not 1")
    if output.scores is not None and len(output.scores) != len(arms):
        raise PolicyFault(f"{len(output.scores)} scores for {len(arms)} arms")
    if output.scores is not None and not all(math.isfinite(s) for s in output.scores):
        raise PolicyFault(f"a score is not finite: {output.scores}")
    return tuple(p / total for p in pmf)


def with_floor(
    pmf: Sequence[float], *, floor: float, raised: Mapping[ArmName, float] | None = None, arms: Sequence[ArmName] = ()
) -> tuple[float, ...]:
    """Mix so that no arm falls below its floor: p'_i = f_i + (1 - sum f) p_i, with f_i = floor unless it is raised.

    Every arm keeps the chance that off-policy evaluation needs; importance weights stay below 1/floor. Where the raised
    floors do not fit beside the others, what they ask for above `floor` is cut in one proportion; where K arms cannot
    all have `floor`, the pmf becomes uniform.
    """
    count = len(pmf)
    floor = min(floor, 1.0 / count)
    room = 1.0 - count * floor
    if not raised:
        return tuple(floor + room * p for p in pmf)
    more = [max(0.0, raised.get(arm, 0.0) - floor) for arm in arms]
    wanted = math.fsum(more)
    scale = 1.0 if wanted <= room else room / wanted
    left = max(0.0, room - scale * wanted)
    return tuple(floor + scale * m + left * p for m, p in zip(more, pmf, strict=True))


def seed_of(decision_id: str, *, secret: bytes | None = None) -> int:
    """The 64-bit seed of a decision's draw: the first eight bytes of HMAC-SHA256(secret, its id), big-endian.

    secret: the store's, so that a caller who names the id cannot foresee the draw. None: the sha256 of the id alone, as
    offline, where nobody outside names ids, and as earlier releases drew.
    """
    text = decision_id.encode()
    digest = hashlib.sha256(text).digest() if secret is None else hmac.digest(secret, text, "sha256")
    return int.from_bytes(digest[:8], "big")


def choose(pmf: Sequence[float], *, seed: int) -> int:
    """The index drawn from pmf by the seed: inverse transform of u = (seed's top 53 bits) / 2**53, left to right."""
    u = (seed >> 11) * 2.0**-53
    edge = 0.0
    for index, p in enumerate(pmf):
        edge += p
        if u < edge:
            return index
    # Rounding left the last edge just below u: the last arm that can be drawn at all takes the sliver.
    return max(i for i, p in enumerate(pmf) if p > 0.0)


def fallback_arm(fallback: str | None, *, arms: Sequence[ArmName]) -> ArmName:
    """The arm that plays where no policy can: the one set, None: single_step; the first one where that is not there."""
    wanted = ArmName(_FALLBACK if fallback is None else fallback)
    return wanted if wanted in arms else arms[0]


def held_back(
    pmf: Sequence[float], *, restraint: Restraint, floor: float, arms: Sequence[ArmName]
) -> tuple[tuple[float, ...], float, dict[str, Json]]:
    """The pmf that is drawn from, its floor, and what the row says of it.

    Where the incumbent is not offered the pmf stays as it is.
    """
    if restraint.arm not in arms:
        facts = _facts(restraint.arm, share=1.0, slack=restraint.slack, reason="not offered", floor=floor)
        return tuple(pmf), floor, facts
    risk = math.fsum(p * r for p, r in zip(pmf, restraint.risks, strict=True))
    share = 1.0 if risk <= restraint.allowance else max(restraint.allowance, 0.0) / risk
    mixed = tuple(share * p + (1.0 - share if arm == restraint.arm else 0.0) for p, arm in zip(pmf, arms, strict=True))
    reason = restraint.reason if share < 1.0 else None
    return mixed, floor * share, _facts(restraint.arm, share=share, slack=restraint.slack, reason=reason, floor=floor)


def held_back_wholly(
    incumbent: ArmName, *, floor: float, arms: Sequence[ArmName]
) -> tuple[tuple[float, ...], float, dict[str, Json]]:
    """The incumbent alone, where the policy broke its contract: nobody knows what another arm would cost."""
    pmf = tuple(float(arm == incumbent) for arm in arms)
    return pmf, 0.0, _facts(incumbent, share=0.0, slack=None, reason="the policy failed", floor=floor)


def _facts(arm: ArmName, *, share: float, slack: float | None, reason: str | None, floor: float) -> dict[str, Json]:
    return {"arm": arm, "share": share, "slack": slack, "reason": reason, "floor": floor}


def draw(
    output: PolicyOutput | Exception,
    *,
    arms: Sequence[ArmName],
    floor: float,
    fallback: str | None,
    seed: int,
    raised: Mapping[ArmName, float] | None = None,
    incumbent: ArmName | None = None,
    holdback: Holdback | None = None,
) -> Drawn:
    """Gate, floor, draw: the whole way from a policy's output for a question to the arm it gets.

    raised: the arms whose floor is higher, with that floor; it goes into the facts, so that the row tells it.
    Where the policy raised, or its output fails the gate, the fallback arm (None: single_step; the first one where
    that is not offered) has all the probability but the floor, and the fault says why. incumbent: the arm that nothing
    may fall behind; it then has all of the probability. What holds a policy back to it is in the facts. holdback:
    mixed in last, where it applies to these arms.
    """
    scores: tuple[float, ...] | None = None
    facts: dict[str, Json] = {}
    fault, restraint = None, None
    try:
        if isinstance(output, Exception):
            raise output
        pmf, scores, facts = gate(output, arms=arms), output.scores, dict(output.facts)
        restraint = output.restraint
    except Exception as error:  # a policy must never cost a caller the answer
        fault = str(error) if isinstance(error, PolicyFault) else f"{type(error).__name__}: {error}"
        wanted = fallback_arm(fallback, arms=arms)
        pmf = tuple(float(arm == wanted) for arm in arms)
    pmf = with_floor(pmf, floor=floor, raised=raised, arms=arms)
    if raised:
        facts[COLD_START_FLOOR] = dict(raised)
    if fault is not None and incumbent is not None and incumbent in arms:
        pmf, floor, facts[INCUMBENT] = held_back_wholly(incumbent, floor=floor, arms=arms)
    elif restraint is not None:
        pmf, floor, facts[INCUMBENT] = held_back(pmf, restraint=restraint, floor=floor, arms=arms)
    if holdback is not None and holdback.applies(arms):
        facts[HOLDBACK] = holdback.facts(floor=floor)
        rest = 1.0 - holdback.share
        pmf = tuple(rest * p + (holdback.share if a == holdback.arm else 0.0) for a, p in zip(arms, pmf, strict=True))
        floor = rest * floor
    scores = None if scores is None else tuple(scores)
    return Drawn(index=choose(pmf, seed=seed), pmf=pmf, floor=floor, scores=scores, facts=facts, fault=fault)


def cold_start_floors(
    seen: Mapping[ArmName, int], *, arms: Sequence[ArmName], share: float, outcomes: int
) -> dict[ArmName, float]:
    """Arm -> cold-start floor, `share`, of the arms with fewer than `outcomes` learned outcomes."""
    return {arm: share for arm in arms if share > 0.0 and seen.get(arm, 0) < outcomes}


def raised_floors(facts: Mapping[str, Json]) -> Mapping[ArmName, float] | None:
    """The cold-start floors that a stored decision was drawn with, out of its facts; None where it had none."""
    floors = facts.get(COLD_START_FLOOR)
    return floors if isinstance(floors, dict) else None


def holdback_of(facts: Mapping[str, Json]) -> Holdback | None:
    """The holdback that a stored decision was drawn with, out of its facts; None where it had none."""
    row = facts.get(HOLDBACK)
    if not isinstance(row, Mapping):
        return None
    arm, share = row.get("arm"), row.get("share")
    return Holdback(arm=ArmName(str(arm)), share=float(share)) if isinstance(share, int | float) else None


def is_explored(pmf: Sequence[float], drawn: int) -> bool:
    """Whether another arm was at least as likely as the one drawn: all but the strictly likeliest are explored."""
    return sum(p >= pmf[drawn] for p in pmf) > 1


def with_untried(
    facts: Mapping[str, Json], *, arms: Sequence[ArmName], seen: Mapping[ArmName, int]
) -> Mapping[str, Json]:
    """The facts, and the arms of which the policy had learned nothing, where there are any."""
    untried: list[Json] = [arm for arm in arms if not seen.get(arm)]
    return {**facts, UNTRIED: untried} if untried else facts


def outputs_of(
    policy: Policy, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[tuple[ArmName, ...]]
) -> list[PolicyOutput | Exception]:
    """The policy's output for each question; where the group breaks it, each question for itself."""
    try:
        outputs: list[PolicyOutput | Exception] = list(policy.pmf(queries, features=features, arms=arms))
        if len(outputs) != len(queries):
            raise PolicyFault(f"{len(outputs)} outputs for {len(queries)} questions")
        return outputs
    except (Exception, SystemExit) as error:  # a policy must never cost a caller the answer
        if len(queries) == 1:
            return [error if isinstance(error, Exception) else PolicyFault(f"SystemExit: {error}")]
    singles: list[PolicyOutput | Exception] = []
    for index, query in enumerate(queries):
        row = None if features is None else features[index : index + 1]
        singles += outputs_of(policy, [query], features=row, arms=[arms[index]])
    return singles


def made_decisions(
    queries: Sequence[Query],
    *,
    run_by: Sequence[RunBy],
    outputs: Sequence[PolicyOutput | Exception],
    arms: Sequence[tuple[ArmName, ...]],
    features: Sequence[Features | None] | FeatureRows,
    settings: Settings,
    seen: Mapping[ArmName, int],
    version: str,
    encoder_hash: str,
    now: float,
    cost_weights: Sequence[float | None] = (),
    secret: bytes | None = None,
) -> list[Decision]:
    """The decisions that follow from a policy's outputs for queries with an id, in their order.

    seen: the outcomes of each arm that the policy has learned, for the cold-start floor. cost_weights: those that the
    queries were served at; none: that of the reward setting. secret: as in `seed_of`.
    """
    label = PolicyLabel(settings.policy.label)
    seeds = [seed_of(query.id or "", secret=secret) for query in queries]
    drawn = drawn_by_arms(outputs, arms=arms, seeds=seeds, settings=settings, seen=seen)
    decisions = []
    for at, (query, one) in enumerate(zip(queries, drawn, strict=True)):
        assert query.id is not None
        decisions.append(
            Decision(
                id=DecisionId(query.id),
                query=query,
                arm=arms[at][one.index],
                arms=arms[at],
                pmf=one.pmf,
                propensity=one.pmf[one.index],
                scores=one.scores,
                policy=label,
                version=version,
                encoder_hash=encoder_hash,
                seed=seeds[at],
                floor=one.floor,
                explored=is_explored(one.pmf, one.index),
                fault=one.fault,
                facts=with_untried(one.facts, arms=arms[at], seen=seen),
                run_by=run_by[at],
                features=features[at],
                made_at=now,
                cost_weight=cost_weights[at] if cost_weights else None,
            )
        )
    return decisions


def drawn_by_arms(
    outputs: Sequence[PolicyOutput | Exception],
    *,
    arms: Sequence[tuple[ArmName, ...]],
    seeds: Sequence[int],
    settings: Settings,
    seen: Mapping[ArmName, int],
) -> list[Drawn]:
    """The draw of each question."""
    policy, kept = settings.policy, settings.policy.holdback
    share, outcomes = policy.cold_start_floor, policy.cold_start_outcomes
    raised = {offered: cold_start_floors(seen, arms=offered, share=share, outcomes=outcomes) for offered in set(arms)}
    floors = {offered: policy.floor_of(len(offered)) for offered in raised}
    alike = partial(
        draw,
        fallback=policy.fallback,
        incumbent=None if policy.incumbent is None else ArmName(policy.incumbent),
        holdback=None if kept is None else Holdback(arm=ArmName(kept.arm), share=kept.share),
    )
    return [
        alike(output, arms=offered, floor=floors[offered], seed=seed, raised=raised[offered])
        for output, offered, seed in zip(outputs, arms, seeds, strict=True)
    ]


def configured_floor(decision: Decision) -> float:
    """The floor that a decision was made with, before restraint and holdback; its `floor` is what is left of that."""
    facts = decision.facts.get(INCUMBENT, decision.facts.get(HOLDBACK))
    floor = facts.get("floor") if isinstance(facts, Mapping) else None
    return float(floor) if isinstance(floor, int | float) else decision.floor


def mixed(champion: Sequence[float], candidate: Sequence[float], *, weight: float) -> tuple[float, ...]:
    """The mixture of two pmfs over the same arms, normalised exactly as `draw.gate` does. weight: in [0, 1]."""
    parts = tuple((1.0 - weight) * p + weight * q for p, q in zip(champion, candidate, strict=True))
    total = math.fsum(parts)
    return tuple(p / total for p in parts)


def mixed_floor(champion: float, candidate: float, *, weight: float, arms: int, added: int = 0) -> float:
    """The least probability that an arm can have in a mixture.

    champion, candidate: their floors. arms: of the mixture. added: those that the champion does not offer.
    """
    known = 0.0 if added else min(champion, 1.0 / arms)
    return (1.0 - weight) * known + weight * min(candidate, 1.0 / arms)
