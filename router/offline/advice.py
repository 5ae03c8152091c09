"""The verdict on outcomes: what learned routing earns on questions that it has not learned, against each fixed arm.

Three parts, on the same questions:

- after a warm start: the policy learns the outcomes of the other folds, and is asked as it would be served, floors
  included. Its gain over each arm is paired by question; of a log whose draws tell one arm a question it is estimated
  (`ragbandit.router.offline.replay`);
- the control: the same with the outcomes of whole questions permuted. Nothing can be learned there: what the policy
  seems to gain is chance;
- from cold: passes in the service's own way, one drawn arm a question, a share of them labelled. They say from which
  question on routing has paid for its learning.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.price import Price, means_of, price_of
from ragbandit.router.offline.estimation import Choices, Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import folds_of
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.offline.replay.assemble import mean_of
from ragbandit.router.offline.replay.candidates import (
    CandidatePolicy,
    MemoryLog,
    crossfitted,
    memory_log,
    settings_in_force,
)
from ragbandit.router.offline.replay.engine import estimate_candidates
from ragbandit.router.offline.replay.plan import (
    CandidatePmf,
    CandidateSpec,
    EstimateWithInterval,
    Plan,
    ReplayResult,
    array_pmf,
    baselines,
)
from ragbandit.router.offline.replay.sums import memory_part
from ragbandit.router.offline.simulation.measure import FirstPass, first_pass
from ragbandit.router.offline.simulation.run import SimulationData, SimulationRun, played
from ragbandit.router.offline.warm import Outcomes, numbered, outcomes_of
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, serves_prices
from ragbandit.router.reporting.report import FEWEST_TO_FIX, WORTH
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import number, roughly
from ragbandit.shared.types import ArmName, Matrix, TableRow, Vector, finite_json

Kind = Literal["route", "fix", "not enough", "wrong log"]
#: confidence of the intervals
CONFIDENCE: Final = 0.95
#: right answers a question that an arm may have less than the best, and be called as good
AS_GOOD: Final = 0.01
#: share of the decisions that are labelled, by default
LABELLED: Final = 0.3
#: orders of the questions in which a policy learns from cold
PASSES: Final = 5
#: further weights of the frontier, as multiples of the proposed one
_TRIED: Final = (0.0, *(10.0**exponent for exponent in (-1.5, -1.0, -0.5, 0.5, 1.0, 1.5)))
#: a forecast of more questions is none
_FARTHEST: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Options of the verdict."""

    #: parts of the questions, each held out once
    folds: int = 5
    #: share of the decisions that are labelled in the passes from cold, in (0, 1]
    labelled: float = LABELLED
    #: least gain a question that is worth a router
    worth: float = WORTH
    #: confidence of the policy's gains if every outcome is known; other intervals have CONFIDENCE
    confidence: float = CONFIDENCE
    #: the control, the passes from cold, and the frontier
    everything: bool = True
    #: only one arm is left in a race: no other arm may be the best anywhere
    alone: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One way to choose, on the questions held out: means per question."""

    name: str
    #: "best fixed", "most expensive", "cheapest that is as good"
    roles: tuple[str, ...] = ()
    reward: EstimateWithInterval
    quality: EstimateWithInterval
    #: in units of `reward.cost`
    cost: EstimateWithInterval
    #: share of every arm
    shares: Mapping[ArmName, float]
    #: reward of the policy minus this one's, paired; None for the policy itself
    gain: EstimateWithInterval | None = None
    #: questions that it answered
    questions: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """The policy at one weight of cost."""

    name: str
    quality: EstimateWithInterval
    cost: EstimateWithInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The verdict on whether routing pays, with its evidence."""

    verdict: Kind
    sentence: str
    #: the best fixed arm, by `reward.weight`
    best: str
    #: "every arm": all outcomes are known; "replay": estimated from the logged draws
    by: str
    questions: int
    rows: int
    #: the policy first
    standings: tuple[Standing, ...]
    #: gain over the best fixed arm with the outcomes permuted; None where it was not made
    control: EstimateWithInterval | None = None
    #: passes from cold against always the best fixed arm
    cold: FirstPass | None = None
    frontier: tuple[Point, ...] = ()
    #: reward.weight against the rows; None if fewer than two arms have a quality of their own
    price: Price | None = None
    notes: tuple[str, ...] = ()
    ask: Ask = field(default_factory=Ask)
    #: arm that the log cannot judge -> why, and what would change that
    untried: Mapping[ArmName, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values; None for a number that is not known."""
        values: dict[str, Any] = finite_json(asdict(self))
        return values


def advise(
    rows: Sequence[Logged],
    *,
    source: str,
    policy: Policy,
    name: str,
    settings: Settings,
    ask: Ask | None = None,
    progress: Progress = no_progress,
) -> Advice:
    """The verdict on these rows, which have features where the policy needs them.

    policy: a fresh one; its params are those of the copies that learn. name: of the policy, for messages.
    Raises InvalidInput for fewer questions than folds.
    """
    ask = ask or Ask()
    outcomes = outcomes_of([row for row in rows if row.reward.has_parts] or rows)
    faults, untried = ((), {}) if outcomes is not None else _checked(rows, folds=ask.folds, source=source)
    if faults:
        return _of_wrong_log(faults, rows=rows)
    rows = [row for row in rows if row.reward.has_parts] or rows
    judged = rows if outcomes is None else outcomes.rows
    log = memory_log(judged, mixed_arms=True, described=source)
    question = numbered(judged)
    if (questions := int(question.max()) + 1) < ask.folds:
        message = f"{questions} different questions cannot be cut in {ask.folds} folds"
        raise InvalidInput(message, field=source, remedy="give more questions")
    settings = settings_in_force(settings, arms=log.log.arms, floor=None)
    folds = _folds(log, question=question, folds=ask.folds)
    apart = all(row.reward.has_parts for row in judged)
    price = _price(judged, weight=settings.reward.weight) if apart else None
    weights = _weights(settings, price) if apart and ask.everything and serves_prices(policy) else {}
    pmfs, notes = _asked(policy, weights, name=name, log=log, folds=folds, settings=settings, progress=progress)
    if outcomes is None:
        result = _replayed(log, pmfs, folds=ask.folds, progress=progress)
        if result.faults:  # the weights of the policy contradict the log
            return _of_wrong_log(result.faults, rows=rows)
        known = _estimated(result, name=name, arms=log.log.arms)
        notes = (*notes, *result.notes, *(f"{arm} {words}" for arm, words in untried.items()))
    else:
        shares = {label: _by_question(pmf, question) for label, pmf in pmfs.items()}
        known = _counted(outcomes, shares, settings=settings, confidence=ask.confidence)
    labels = weights.values()
    standings = _with_roles([one for one in known if one.name not in labels], untried=untried)
    frontier = [Point(name=one.name, quality=one.quality, cost=one.cost) for one in known if one.name in labels]
    best = next(one for one in standings if "best fixed" in one.roles)
    advice = Advice(
        verdict="not enough",
        sentence="",
        best=best.name.removeprefix("always "),
        by="replay" if outcomes is None else "every arm",
        questions=questions,
        rows=len(rows),
        standings=standings,
        frontier=tuple(frontier),
        price=price,
        notes=notes,
        ask=ask,
        untried=untried,
    )
    if outcomes is not None and ask.everything:
        common: dict[str, Any] = {"policy": policy, "ask": ask, "settings": settings, "progress": progress}
        control = _control(outcomes, best=best.name, **common)
        advice = replace(advice, control=control, cold=_cold(outcomes, best=advice.best, **common))
    return concluded(advice, gain=best.gain or EstimateWithInterval(value=0.0))


def _folds(log: MemoryLog, *, question: Choices, folds: int) -> Choices:
    """The fold of each row, by its question without the context; no fold is empty.

    question: number of each row's question with its context, for a log of fewer questions than folds.
    """
    mixed = folds_of(log.log.questions, folds=folds)
    if len(np.unique(mixed)) == folds:
        return mixed
    texts, numbers = np.unique(log.log.questions, return_inverse=True)
    return np.asarray((question if len(texts) < folds else numbers) % folds, dtype=np.intp)


def _price(rows: Sequence[Logged], *, weight: float) -> Price | None:
    parts = ((row.decision, row.reward) for row in rows)
    means = means_of((one.arm, r.quality, r.cost, r.sample_weight, one.propensity) for one, r in parts)
    return price_of(means, weight=weight) if len(means) > 1 else None


def _weights(settings: Settings, price: Price | None) -> Mapping[float, str]:
    """Weight -> it and the names of the settings that it is, in order."""
    named = [
        *((weight, name) for name, weight in settings.cost_weights.items()),
        (settings.reward.weight, "reward.weight"),
    ]
    unit = settings.reward.weight or 1.0
    if price is not None and price.proposed is not None and price.proposed > 0.0:
        unit = price.proposed
        named.append((unit, "proposed"))
    weights: dict[float, str] = {}
    for weight, name in sorted([*named, *((unit * times, "") for times in _TRIED)]):
        weights[weight] = f"{weights.get(weight, number(weight))} {name}".strip()
    return weights


def _asked(
    policy: Policy,
    weights: Mapping[float, str],
    *,
    name: str,
    log: MemoryLog,
    folds: Choices,
    settings: Settings,
    progress: Progress,
) -> tuple[dict[str, Matrix], tuple[str, ...]]:
    """The policy's probabilities, (n, K) each, by its name and by each weight's; and what went wrong, as notes."""

    def made() -> CandidatePolicy:
        copy = make_policy(policy.algorithm, params=policy.params)
        return CandidatePolicy(copy, log=log, features=log.log.features, settings=settings, weight=None)

    pmfs, notes = crossfitted(
        [None, *weights], name=name, make=made, folds_of_rows=folds, folds=int(folds.max()) + 1, progress=progress
    )
    return dict(zip((name, *weights.values()), pmfs, strict=True)), notes


def _by_question(pmf: Matrix, question: Choices) -> Matrix:
    """The rows of a question share what they were given: one of them, (questions, K)."""
    _, first = np.unique(question, return_index=True)
    return np.asarray(pmf[first])


def _counted(
    outcomes: Outcomes, shares: Mapping[str, Matrix], *, settings: Settings, confidence: float
) -> list[Standing]:
    """Means over the questions of what each arm made of them, and each name's: the policy's first.

    shares: name -> of the arms in the race, (questions, K).
    """
    rewards = settings.reward.minimum, settings.reward.maximum
    apart = rewards[0] - rewards[1], rewards[1] - rewards[0]
    standings, rivals, values = [], [], {key: getattr(outcomes, key) for key in ("reward", "quality", "cost")}
    for name, given in shares.items():
        chosen = np.zeros(outcomes.reward.shape)
        chosen[:, outcomes.complete] = given
        rivals.append({key: np.nansum(chosen * every, axis=1) for key, every in values.items()})
        standings.append(_line(outcomes, rivals[-1], name=name, chosen=chosen, possible=rewards))
    for column, arm in enumerate(outcomes.arms):
        always = np.zeros(outcomes.reward.shape)
        always[:, column] = 1.0
        theirs = {key: every[:, column] for key, every in values.items()}
        gaps = rivals[0]["reward"] - theirs["reward"]
        gain = mean_of(gaps[~np.isnan(gaps)], possible=apart, confidence=confidence)
        line = _line(outcomes, theirs, name=f"always {arm}", chosen=always, possible=rewards)
        standings.append(replace(line, gain=gain))
    return standings


def _line(
    outcomes: Outcomes, values: Mapping[str, Vector], *, name: str, chosen: Matrix, possible: tuple[float, float]
) -> Standing:
    known = ~np.isnan(values["reward"])
    return Standing(
        name=name,
        reward=mean_of(values["reward"][known], possible=possible, confidence=CONFIDENCE),
        quality=EstimateWithInterval(value=float(values["quality"][known].mean())),
        cost=EstimateWithInterval(value=float(values["cost"][known].mean())),
        shares=dict(zip(outcomes.arms, map(float, chosen.mean(axis=0)), strict=True)),
        questions=int(known.sum()),
    )


def _of_wrong_log(faults: Sequence[str], *, rows: Sequence[Logged]) -> Advice:
    sentence, questions = f"this log is wrong: {'; '.join(faults)}", len({row.decision.query.text for row in rows})
    counts: dict[str, Any] = {"questions": questions, "rows": len(rows)}
    return Advice(verdict="wrong log", sentence=sentence, best="", by="replay", standings=(), **counts)


def _checked(rows: Sequence[Logged], *, folds: int, source: str) -> tuple[Sequence[str], dict[ArmName, str]]:
    """Faults of the log as replay finds them, and the arms that it cannot judge, each with the reason."""
    log = memory_log(rows, mixed_arms=True, described=source)
    result = _replayed(log, {}, folds=folds, progress=no_progress)
    untried = {}
    for one in result.candidates:
        arm = ArmName(one.name.removeprefix("fixed:"))
        drawn = int(np.count_nonzero(log.log.action == log.log.arms.index(arm)))
        if not drawn:
            untried[arm] = "cannot be judged: it was never drawn, and more rows like these would not change that"
        elif one.verdict == "cannot be judged" or one.missing is not None:
            times = "once" if drawn == 1 else f"{drawn:,} times"
            untried[arm] = f"cannot be judged: it was drawn {times}, too seldom"
    return result.faults, untried


def _replayed(log: MemoryLog, pmfs: Mapping[str, Matrix], *, folds: int, progress: Progress) -> ReplayResult:
    fixed = [one for one in baselines(log.log.arms) if one.kind == "fixed"]
    specs = [CandidateSpec(name=label, kind="column", what=label) for label in pmfs]
    candidates = [
        *(CandidatePmf(described=label, pmf=pmf) for label, pmf in pmfs.items()),
        *(CandidatePmf(described=one.name, pmf=array_pmf(one, log=log.log, named=str)) for one in fixed),
    ]
    return estimate_candidates(
        [memory_part(replace(log.log, candidates=tuple(one.pmf for one in candidates)))],
        candidates=[*specs, *fixed],
        candidate_pmfs=candidates,
        plan=Plan(folds=folds),
        log=log.described,
        progress=progress,
    )


def _estimated(result: ReplayResult, *, name: str, arms: Sequence[ArmName]) -> list[Standing]:
    """Every candidate as replay estimates it, the policy first; the gains from the pairs.

    Left out are weights at which the policy is not tried enough.
    """
    gains = {pair.second: pair.difference for pair in result.pairs if pair.first == name}
    return [
        Standing(
            name=f"always {one.name.removeprefix('fixed:')}" if one.name.startswith("fixed:") else one.name,
            reward=one.reward,
            quality=one.quality,
            cost=one.cost,
            shares={arm: one.shares[arm] for arm in arms},
            gain=gains.get(one.name),
            questions=result.rows,
        )
        for one in result.candidates
        if one.name == name or one.name.startswith("fixed:") or one.missing is None
    ]


def _with_roles(standings: Sequence[Standing], *, untried: Mapping[ArmName, str]) -> tuple[Standing, ...]:
    """The arms that a verdict names, marked as such: none that the log cannot judge, unless it can judge none."""
    policy, *fixed = standings
    whole = [one for one in fixed if one.questions == policy.questions]
    whole = [one for one in whole if one.name.removeprefix("always ") not in untried] or whole
    best = max(whole, key=lambda one: one.reward.value)
    good = [one for one in whole if one.quality.value >= best.quality.value - AS_GOOD]
    roles = {
        "best fixed": best,
        "most expensive": max(fixed, key=lambda one: one.cost.value),
        "cheapest that is as good": min(good, key=lambda one: one.cost.value),
    }
    marked = [replace(one, roles=tuple(role for role, arm in roles.items() if arm is one)) for one in fixed]
    return (policy, *marked)


def concluded(advice: Advice, *, gain: EstimateWithInterval) -> Advice:
    """With the verdict and its sentence. gain: over the best fixed arm."""
    worth, control = advice.ask.worth, advice.control
    verdict: Kind = "not enough"
    value = "what learned routing is worth is not known yet"
    if gain.interval is not None:
        (low, high), chance = gain.interval, control is not None and control.value >= gain.value  # by permuted outcomes
        fixed = high < worth and advice.questions >= FEWEST_TO_FIX
        verdict = "route" if low > 0.0 and not chance else "fix" if fixed else "not enough"
        size = f"{gain.value:+.3f} ({low:+.3f} to {high:+.3f})"
        value = f"learned routing is worth {size} a question over always {advice.best}"
    verdict = "fix" if advice.ask.alone else "not enough" if advice.untried and verdict == "fix" else verdict
    if verdict == "fix":
        why = "every other arm left the race" if advice.ask.alone else f"{value}, less than {worth:g}"
        words = f"always {advice.best}: {why}; do not route"
    elif verdict == "route":
        ours, theirs = advice.standings[0], next(one for one in advice.standings if "best fixed" in one.roles)
        words = f"{value}, {_cost(ours, theirs)}{_break_even(advice)}"
    elif advice.untried:
        reasons = "; ".join(f"{arm} {why}" for arm, why in advice.untried.items())
        words = f"{reasons}. Offer {', '.join(advice.untried)} for a while, with a probability that is logged"
    else:
        words = f"{value}; {_forecast(gain, questions=advice.questions, worth=worth)}"
    return replace(advice, verdict=verdict, sentence=f"{verdict}: {words}")


def _cost(ours: Standing, theirs: Standing) -> str:
    quality = f"quality {ours.quality.value:.3f} instead of {theirs.quality.value:.3f}"
    if theirs.cost.value <= 0.0:
        return f"{quality}, cost {number(ours.cost.value)} instead of {number(theirs.cost.value)}"
    saved = 1.0 - ours.cost.value / theirs.cost.value
    return f"{quality} at {abs(saved):.0%} {'less' if saved >= 0.0 else 'more'} cost"


def _break_even(advice: Advice) -> str:
    cold = advice.cold
    if cold is None:
        return ""
    share = f"({advice.ask.labelled:.0%} labelled)"
    if cold.break_even is None:
        return f"; without a warm start it would not pay within {cold.questions} questions {share}: use --apply"
    return f"; without a warm start it pays after about {cold.break_even} questions {share}"


def _forecast(gain: EstimateWithInterval, *, questions: int, worth: float) -> str:
    """How many more questions would decide, if the gain stays what it is: the interval narrows like 1 / sqrt(n)."""
    if gain.interval is None:
        return "give more labelled questions"
    half = (gain.interval[1] - gain.interval[0]) / 2.0
    room = max(gain.value, worth - gain.value)  # to 0 for "route", to `worth` for "fix"
    more = questions * ((half / room) ** 2 - 1.0) if half < _FARTHEST * room else math.inf
    more = max(more, FEWEST_TO_FIX - questions)
    if more > _FARTHEST:
        return "it is too close to the limit to settle with a realistic number of labelled questions"
    count = roughly(more)
    return f"{count} more labelled {'question decides' if count == 'about 1' else 'questions decide'} it"


def _control(
    outcomes: Outcomes, *, best: str, policy: Policy, ask: Ask, settings: Settings, progress: Progress
) -> EstimateWithInterval | None:
    """Gain over the best fixed arm where the outcomes of whole questions are permuted. best: its standing's name."""
    permuted = outcomes.permuted(seed=0)
    log = memory_log(permuted.rows, mixed_arms=True)
    question = numbered(permuted.rows)
    folds = _folds(log, question=question, folds=ask.folds)
    pmfs, _ = _asked(policy, {}, name=policy.algorithm, log=log, folds=folds, settings=settings, progress=progress)
    shares = {policy.algorithm: _by_question(pmfs[policy.algorithm], question)}
    standings = _counted(permuted, shares, settings=settings, confidence=CONFIDENCE)
    return next(one.gain for one in standings if one.name == best)


def _cold(
    outcomes: Outcomes, *, best: str, policy: Policy, ask: Ask, settings: Settings, progress: Progress
) -> FirstPass | None:
    """Passes in which the policy learns as it would in service, against always the best fixed arm."""
    arms = tuple(outcomes.arms[column] for column in outcomes.complete)
    if len(arms) < 2:
        return None
    reward = settings.reward.model_copy(update={"cost": {"steps": 1.0}})  # costs are in its unit already
    settings = settings.model_copy(update={"reward": reward})
    rows = tuple(
        TableRow(
            id=f"q{at}",
            question=query.text,
            correct=dict(zip(arms, np.clip(outcomes.quality[at, outcomes.complete], 0.0, 1.0).tolist(), strict=True)),
            steps=dict(zip(arms, outcomes.cost[at, outcomes.complete].tolist(), strict=True)),
            context=query.context,
        )
        for at, query in enumerate(outcomes.queries)
    )
    table = LabelledTable(rows=rows, arms=arms)
    world = SimulationData(
        table=table,
        judged=table,
        folds=1,
        settings=settings,
        features=outcomes.features,
        judged_features=outcomes.features,
        encoder_hash=outcomes.encoder_hash,
        labelled=ask.labelled,
    )
    runs = [
        SimulationRun(policy=policy.algorithm, params=policy.params, weight=settings.reward.weight, seed=seed, fold=0)
        for seed in range(PASSES)
    ]
    passes = played(runs, world=world, jobs=1, progress=progress)
    rewards = outcomes.reward[:, outcomes.complete]
    return first_pass([[one] for one in passes], arms=arms, rewards=rewards, incumbent=best, harm=settings.policy.harm)
