"""The draw: turns a policy's pmf into a decision. Services and audits use the same code."""

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Final

from ragbandit.router.config.learning import LEAST_SHARE, HoldbackSettings, PolicySettings
from ragbandit.router.policies.base import SINGLE_STEP, Policy, PolicyOutput, Restraint
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import (
    ArmName,
    ColdStartFloors,
    Decision,
    DecisionId,
    FeatureRows,
    Features,
    HoldbackShare,
    Json,
    PolicyLabel,
    Query,
    RunBy,
    SafeStart,
    UntriedArms,
)

#: reason in the facts of a draw that the safe start did not restrain, since a spent budget comes before it
BUDGET_FIRST: Final = "a spent budget comes first"
#: facts of policies with a value for each arm, and the weight of cost; dropped if the decision gets other arms
BY_ARM: Final = ("quality", "cost", "weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdback:
    """An arm that gets a share, in (0, 1), of all questions. Other fields: see `HoldbackShare`."""

    arm: ArmName
    share: float
    first: float | None = None
    until: int | None = None
    then: float | None = None
    learned: int | None = None

    @classmethod
    def of(cls, settings: HoldbackSettings, *, learned: Mapping[ArmName, int]) -> "Holdback":
        """The holdback of a decision. learned: arm -> number of learned outcomes."""
        arm, first, until, then = ArmName(settings.arm), settings.share, settings.until, settings.then
        if until is None or then is None:
            return cls(arm=arm, share=first)
        count = learned.get(arm, 0)
        share = falling_share(first, until=until, end=then, learned=count)
        return cls(arm=arm, share=share, first=first, until=until, then=then, learned=count)


def falling_share(start: float, *, until: int, end: float, learned: int) -> float:
    """The share of a holdback: `start` until the arm has `until` learned answers, then less, but at least `end`.

    The share falls like 1 / learned, not in one step, since a step to less than half of the share would let a report's
    intervals grow: over n questions the mean difference has about the variance (sum of 1 / share) / n^2. The number of
    learned answers grows at most in proportion to n, so with this rule the variance never grows with n.
    """
    return start if learned <= until else max(end, start * until / learned)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawResult:
    index: int
    pmf: tuple[float, ...]
    #: lower limit of the probabilities in `pmf`
    floor: float
    scores: tuple[float, ...] | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)
    #: why the policy's output was replaced by the fallback arm; None if the policy's output was used
    fault: str | None = None


def checked_pmf(output: PolicyOutput, *, arms: Sequence[ArmName]) -> tuple[float, ...]:
    """The normalised pmf. Raises PolicyFault if the output is not a valid pmf over these arms."""
    pmf = tuple(map(float, output.pmf))
    if len(pmf) != len(arms):
        raise PolicyFault(f"pmf has {len(pmf)} entries for {len(arms)} arms")
    if not all(map(math.isfinite, pmf)) or min(pmf) < 0.0:
        raise PolicyFault(f"pmf has an entry that is negative or not finite: {pmf}")
    total = math.fsum(pmf)
    # 1e-6 accepts policies that compute in float32. After normalising, the logged pmf sums to 1 in float64.
    if abs(total - 1.0) > 1e-6:
        raise PolicyFault(f"pmf sums to {total!r}, not 1")
    if output.scores is not None and len(output.scores) != len(arms):
        raise PolicyFault(f"{len(output.scores)} scores for {len(arms)} arms")
    if output.scores is not None and not all(map(math.isfinite, output.scores)):
        raise PolicyFault(f"a score is not finite: {output.scores}")
    return tuple([p / total for p in pmf])


def with_floor(
    pmf: Sequence[float], *, floor: float, floors: Mapping[ArmName, float] | None = None, arms: Sequence[ArmName] = ()
) -> tuple[float, ...]:
    """Mix in the floors: an arm with probability p and floor f gets f + (1 - sum of all floors) * p.

    f is `floor`, or the arm's floor in `floors` if that is higher. Off-policy evaluation needs a probability > 0
    for every arm: importance weights are then at most 1/floor. If all floors sum to more than 1, the parts of
    `floors` above `floor` are reduced by a common factor. If K * `floor` exceeds 1 for K arms, the pmf is uniform.
    """
    count = len(pmf)
    floor = min(floor, 1.0 / count)
    room = 1.0 - count * floor
    if not floors:
        return tuple([floor + room * p for p in pmf])
    extra = [max(0.0, floors.get(arm, 0.0) - floor) for arm in arms]
    total = math.fsum(extra)
    scale = 1.0 if total <= room else room / total
    remaining = max(0.0, room - scale * total)
    return tuple(floor + scale * e + remaining * p for e, p in zip(extra, pmf, strict=True))


def seed_of(decision_id: str, *, secret: bytes | None = None) -> int:
    """The 64-bit seed of a decision's draw: the first eight bytes of HMAC-SHA256(secret, decision_id), big-endian.

    secret: the store's secret, so that callers who choose ids cannot predict the draw. None hashes only the id,
        which is safe offline, because callers choose no ids there.
    """
    text = decision_id.encode()
    digest = hashlib.sha256(text).digest() if secret is None else hmac.digest(secret, text, "sha256")
    return int.from_bytes(digest[:8], "big")


def draw_index(pmf: Sequence[float], *, seed: int) -> int:
    """Draw an index from the pmf by the inverse transform of u = (top 53 bits of the seed) / 2**53."""
    u = (seed >> 11) * 2.0**-53
    edge = 0.0
    for index, p in enumerate(pmf):
        edge += p
        if u < edge:
            return index
    # By rounding, the sum of all probabilities may be just below u: draw the last arm with a probability above 0.
    return max(i for i, p in enumerate(pmf) if p > 0.0)


def fallback_arm(fallback: str | None, *, arms: Sequence[ArmName]) -> ArmName:
    """The configured fallback arm, by default single_step; the first offered arm if that arm is not offered."""
    arm = SINGLE_STEP if fallback is None else ArmName(fallback)
    return arm if arm in arms else arms[0]


def uniform_of(seed: int) -> float:
    """A uniform number in [0, 1) that depends only on a decision's seed, and is independent of `draw_index`."""
    digest = hashlib.sha256(b"turn" + seed.to_bytes(8, "big")).digest()
    return float(int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def with_least_share(pmf: Sequence[float], *, min_share: float, uniform: float, kept_index: int) -> tuple[float, ...]:
    """Probabilities that are 0 or at least `min_share`, and that equal `pmf` on average over all `uniform` in [0, 1).

    An arm with a probability p below `min_share` gets it for a share p / `min_share` of all values of `uniform`, else
    0. For one value, as many arms get it as their sum of p allows (systematic sampling; Madow 1949). The likeliest arm
    gets the rest. If the arm at the index `kept_index` has such a probability, it always gets `min_share`.
    """
    likeliest = max(range(len(pmf)), key=pmf.__getitem__)
    shares = list(pmf)
    for index, p in enumerate(pmf):
        if index == likeliest or not 0.0 < p < min_share:
            continue
        before, uniform = math.floor(uniform), uniform + p / min_share
        shares[index] = min_share if index == kept_index or math.floor(uniform) > before else 0.0
    given = [index for index, share in enumerate(shares) if share > pmf[index] and index != kept_index]
    while shares != list(pmf):
        shares[likeliest] = 0.0
        shares[likeliest] = 1.0 - math.fsum(shares)
        if shares[likeliest] >= min_share or not given:
            break
        shares[given.pop()] = 0.0  # there are so many arms that the likeliest one has little, too
    return tuple(shares)


def with_incumbent(
    pmf: Sequence[float],
    *,
    restraint: Restraint,
    floor: float,
    arms: Sequence[ArmName],
    seed: int | None,
    held: float = 0.0,
    released: bool = False,
) -> tuple[tuple[float, ...], float, SafeStart]:
    """Mix in the incumbent as far as the restraint requires. Returns (pmf, floor, fact to store).

    No probability is above 0 and below LEAST_SHARE (see `with_least_share`), so that importance weights stay
    small. seed: the decision's seed; None for the average over all seeds, which may have smaller probabilities. held:
    share of a holdback that is mixed in afterwards. released: whether a spent budget comes before the restraint
    """
    share = 1.0
    reason: str | None = BUDGET_FIRST if released else "not offered"
    if restraint.arm in arms and not released:
        risk = math.fsum(p * r for p, r in zip(pmf, restraint.risks, strict=True))
        share = 1.0 if risk <= restraint.allowance else max(restraint.allowance, 0.0) / risk
        reason = restraint.reason if share < 1.0 else None
    mixed = tuple(share * p + (1.0 - share if arm == restraint.arm else 0.0) for p, arm in zip(pmf, arms, strict=True))
    slack = restraint.slack
    fact = SafeStart(arm=restraint.arm, share=share, slack=slack, reason=reason, floor=floor, released=released)
    if seed is None or restraint.arm not in arms:
        return mixed, floor * share, fact
    least = LEAST_SHARE / (1.0 - held)
    mixed = with_least_share(mixed, min_share=least, uniform=uniform_of(seed), kept_index=arms.index(restraint.arm))
    return mixed, floor * share if floor * share >= least else 0.0, fact


def with_holdback(
    pmf: Sequence[float], *, holdback: Holdback, floor: float, arms: Sequence[ArmName]
) -> tuple[tuple[float, ...], float, HoldbackShare]:
    """Give the holdback's arm its share. Returns (pmf, floor, fact to store)."""
    arm, share = holdback.arm, holdback.share
    mixed = tuple((1.0 - share) * p + (share if a == arm else 0.0) for a, p in zip(arms, pmf, strict=True))
    return mixed, floor * (1.0 - share), HoldbackShare(floor=floor, **asdict(holdback))


def draw(
    output: PolicyOutput | Exception,
    *,
    arms: Sequence[ArmName],
    floor: float,
    fallback: str | None,
    seed: int | None,
    floors: Mapping[ArmName, float] | None = None,
    incumbent: ArmName | None = None,
    holdback: Holdback | None = None,
    released: bool = False,
) -> DrawResult:
    """Draw an arm from a policy's output: check, floors, restraint, holdback, choice. The facts record these steps.

    output: the policy's output, or the exception that it raised. After an exception or an invalid output, the fallback
        arm gets all probability above the floors, and `DrawResult.fault` contains the reason
    seed: seed of the draw. If it is None, nothing is drawn: the pmf is the average over all seeds, and the index is
        that of the likeliest arm
    floors: arm -> its floor, for arms with a higher floor than `floor`
    incumbent: arm that gets all probability if the policy failed and the arm is offered
    released: whether a spent budget comes before the restraint
    """
    scores: tuple[float, ...] | None = None
    facts: dict[str, Json] = {}
    fault, restraint = None, None
    try:
        if isinstance(output, Exception):
            raise output
        pmf = checked_pmf(output, arms=arms)
        scores, facts = output.scores, dict(output.facts)
        restraint = output.restraint
    except Exception as error:  # a caller gets an answer even if the policy is broken
        fault = str(error) if isinstance(error, PolicyFault) else f"{type(error).__name__}: {error}"
        played = fallback_arm(fallback, arms=arms)
        pmf = tuple(float(arm == played) for arm in arms)
    pmf = with_floor(pmf, floor=floor, floors=floors, arms=arms)
    if floors:
        facts[ColdStartFloors.key] = ColdStartFloors(floors=floors).stored
    held = holdback.share if holdback is not None and holdback.arm in arms and len(arms) > 1 else 0.0
    if fault is not None and incumbent is not None and incumbent in arms:
        fact = SafeStart(arm=incumbent, share=0.0, slack=None, reason="the policy failed", floor=floor)
        facts[SafeStart.key] = fact.stored
        pmf, floor = tuple(float(arm == incumbent) for arm in arms), 0.0
    elif restraint is not None:
        pmf, floor, fact = with_incumbent(
            pmf, restraint=restraint, floor=floor, arms=arms, seed=seed, held=held, released=released
        )
        facts[SafeStart.key] = fact.stored
    if holdback is not None and held > 0.0:
        pmf, floor, control = with_holdback(pmf, holdback=holdback, floor=floor, arms=arms)
        facts[HoldbackShare.key] = control.stored
    scores = None if scores is None else tuple(scores)
    index = pmf.index(max(pmf)) if seed is None else draw_index(pmf, seed=seed)
    return DrawResult(index=index, pmf=pmf, floor=floor, scores=scores, facts=facts, fault=fault)


def cold_start_floors(
    learned: Mapping[ArmName, int], *, arms: Sequence[ArmName], share: float, outcomes: int
) -> dict[ArmName, float]:
    return {arm: share for arm in arms if learned.get(arm, 0) < outcomes} if share > 0.0 else {}


def holdback_of(facts: Mapping[str, Json]) -> Holdback | None:
    """The holdback with which a decision was drawn; None without a holdback."""
    fact = HoldbackShare.of(facts)
    if fact is None:
        return None
    return Holdback(**{part.name: getattr(fact, part.name) for part in fields(Holdback)})


def is_explored(pmf: Sequence[float], drawn: int) -> bool:
    """Whether a draw explored: another arm was at least as probable as the drawn one."""
    return sum([p >= pmf[drawn] for p in pmf]) > 1


def outputs_of(
    policy: Policy, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[tuple[ArmName, ...]]
) -> list[PolicyOutput | Exception]:
    """The policy's output or exception for each question. If a batch fails, each question is asked separately."""
    try:
        outputs: list[PolicyOutput | Exception] = list(policy.pmf(queries, features=features, arms=arms))
        if len(outputs) != len(queries):
            raise PolicyFault(f"{len(outputs)} outputs for {len(queries)} questions")
        return outputs
    except (Exception, SystemExit) as error:  # a caller gets an answer even if the policy is broken
        if len(queries) == 1:
            return [error if isinstance(error, Exception) else PolicyFault(f"SystemExit: {error}")]
    singles: list[PolicyOutput | Exception] = []
    for index, query in enumerate(queries):
        row = None if features is None else features[index : index + 1]
        singles += outputs_of(policy, [query], features=row, arms=[arms[index]])
    return singles


@dataclass(kw_only=True, slots=True)
class Offer:
    query: Query
    run_by: RunBy
    arms: tuple[ArmName, ...] = ()
    #: weight of cost for this decision; None for the setting `reward.weight`
    cost_weight: float | None = None


def make_decisions(
    offers: Sequence[Offer],
    *,
    outputs: Sequence[PolicyOutput | Exception],
    features: Sequence[Features | None] | FeatureRows,
    settings: PolicySettings,
    learned: Mapping[ArmName, int],
    version: str,
    encoder_hash: str,
    now: float,
    secret: bytes | None = None,
) -> list[Decision]:
    """Draw an arm for each offer. learned: arm -> number of learned outcomes. secret: see `seed_of`."""
    arms = [offer.arms for offer in offers]
    seeds = [seed_of(offer.query.id or "", secret=secret) for offer in offers]
    released = [offer.query.terms.is_spent for offer in offers]
    drawn = draw_each(outputs, arms=arms, seeds=seeds, settings=settings, learned=learned, released=released)
    decisions = []
    for number, (offer, result) in enumerate(zip(offers, drawn, strict=True)):
        assert offer.query.id is not None
        facts, untried = result.facts, tuple([arm for arm in offer.arms if not learned.get(arm)])
        if untried:
            facts = {**facts, UntriedArms.key: UntriedArms(arms=untried).stored}
        decisions.append(
            Decision(
                id=DecisionId(offer.query.id),
                query=offer.query,
                arm=offer.arms[result.index],
                arms=offer.arms,
                pmf=result.pmf,
                propensity=result.pmf[result.index],
                scores=result.scores,
                policy=PolicyLabel(settings.label),
                version=version,
                encoder_hash=encoder_hash,
                seed=seeds[number],
                floor=result.floor,
                explored=is_explored(result.pmf, result.index),
                fault=result.fault,
                facts=facts,
                run_by=offer.run_by,
                features=features[number],
                made_at=now,
                cost_weight=offer.cost_weight,
            )
        )
    return decisions


def draw_each(
    outputs: Sequence[PolicyOutput | Exception],
    *,
    arms: Sequence[tuple[ArmName, ...]],
    seeds: Sequence[int] | None,
    settings: PolicySettings,
    learned: Mapping[ArmName, int],
    released: Sequence[bool] = (),
) -> list[DrawResult]:
    """The draw of each question. seeds: None if only the pmfs are wanted (see `draw`).

    released: for each question, whether a spent budget comes before the restraint; () if it does for none
    """
    holdback = None if settings.holdback is None else Holdback.of(settings.holdback, learned=learned)
    share, outcomes = settings.cold_start_floor, settings.cold_start_outcomes
    raised = {offer: cold_start_floors(learned, arms=offer, share=share, outcomes=outcomes) for offer in set(arms)}
    floors = {offered: settings.floor_of(len(offered)) for offered in raised}
    draw_one = partial(
        draw,
        fallback=settings.fallback,
        incumbent=None if settings.incumbent is None else ArmName(settings.incumbent),
        holdback=holdback,
    )
    own: Sequence[int | None] = [None] * len(arms) if seeds is None else seeds
    return [
        draw_one(output, arms=offered, floor=floors[offered], seed=seed, floors=raised[offered], released=is_released)
        for output, offered, seed, is_released in zip(outputs, arms, own, released or [False] * len(arms), strict=True)
    ]


def configured_floor(decision: Decision) -> float:
    """The floor of a decision before restraint and holdback. `Decision.floor` is the floor after both."""
    fact = SafeStart.of(decision.facts) or HoldbackShare.of(decision.facts)
    return decision.floor if fact is None or fact.floor is None else fact.floor


def certain_decision(decision: Decision, *, arm: ArmName) -> Decision:
    """The decision with this arm and probability 1, for a step that chose the arm without a draw."""
    facts, scores = decision.facts, decision.scores
    if decision.arms != (arm,):
        facts, scores = {name: value for name, value in facts.items() if name not in BY_ARM}, None
    decision = replace(decision, facts=facts, scores=scores)
    return replace(decision, arm=arm, arms=(arm,), pmf=(1.0,), propensity=1.0, explored=False)
