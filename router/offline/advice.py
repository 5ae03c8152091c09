"""Verdict on whether learned routing pays, on questions that the policy has not learned.

- After a warm start: the questions are split into folds. The policy is judged on each fold after it has learned the
  outcomes of the other folds. Its gain over a fixed arm is the mean difference of their rewards for the same question.
  If the log has the outcome of only one drawn arm per question, replay estimates the gain.
- Control: the same with outcomes permuted between questions. Any gain is then chance.
- From cold: a simulated service draws one arm per question, and labels a share of the answers. The simulation finds
  the number of questions after which routing has paid for its learning.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from ragbandit.router.comparison import WORTH
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.price import Price, means_of, price_of
from ragbandit.router.offline.estimation import Choices, Progress, no_progress
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.replay.assemble import mean_of
from ragbandit.router.offline.replay.candidates import crossfitted_policy, held_out_folds, memory_log, settings_in_force
from ragbandit.router.offline.replay.engine import replay_pmfs
from ragbandit.router.offline.replay.plan import EstimateWithInterval, ReplayResult
from ragbandit.router.offline.simulation.measure import FirstPass, first_pass
from ragbandit.router.offline.simulation.run import SimulationData, SimulationRun, played
from ragbandit.router.offline.warm import Outcomes, numbered, outcomes_of
from ragbandit.router.policies.base import Policy, serves_prices
from ragbandit.router.reporting.report import FEWEST_TO_FIX
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import number, roughly
from ragbandit.shared.types import ArmName, Matrix, Vector, finite_json

Kind = Literal["route", "fix", "not enough", "wrong log"]
CONFIDENCE: Final = 0.95
#: an arm is as good as the best arm if its mean quality is lower by at most this amount
AS_GOOD: Final = 0.01
#: default share of the decisions that are labelled
LABELLED: Final = 0.3
#: number of simulated passes from cold, each over the questions in another order
PASSES: Final = 5
#: for the frontier of quality and cost, the policy is also measured at these multiples of the proposed cost weight
_FRONTIER_FACTORS: Final = (0.0, *(10.0**exponent for exponent in (-1.5, -1.0, -0.5, 0.5, 1.0, 1.5)))
#: largest number of further questions that a forecast names
_FARTHEST: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    folds: int = 5
    labelled: float = LABELLED  #: share of the decisions that are labelled in the passes from cold, in (0, 1]
    worth: float = WORTH  #: smallest gain in reward per question that justifies a router
    #: confidence of the intervals of the policy's gains, if all outcomes are known; all other intervals use CONFIDENCE
    confidence: float = CONFIDENCE
    everything: bool = True  #: False skips the control, the passes from cold and the frontier
    alone: bool = False  #: True if a race of the arms has eliminated all arms except one


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Means per held-out question of a policy or a fixed arm."""

    name: str
    roles: tuple[str, ...] = ()  #: any of "best fixed", "most expensive" and "cheapest that is as good"
    reward: EstimateWithInterval
    quality: EstimateWithInterval
    cost: EstimateWithInterval  #: in units of `reward.cost`
    shares: Mapping[ArmName, float]
    #: mean reward of the policy minus the reward of this arm, paired by question; None for the policy itself
    gain: EstimateWithInterval | None = None
    questions: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    name: str
    quality: EstimateWithInterval
    cost: EstimateWithInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    verdict: Kind
    sentence: str
    best: str  #: fixed arm with the highest mean reward
    #: "every arm" if the outcomes of all arms are known, "replay" if they are estimated from the logged draws
    by: str
    questions: int
    rows: int
    standings: tuple[Standing, ...]  #: the policy first, then the fixed arms
    #: gain over the best fixed arm with outcomes permuted between questions; None if it was not computed
    control: EstimateWithInterval | None = None
    #: simulated service without a warm start, compared with the best fixed arm; None if it was not computed
    cold: FirstPass | None = None
    frontier: tuple[Point, ...] = ()
    #: comparison of reward.weight with the costs in the log; None if fewer than two arms have logged qualities
    price: Price | None = None
    notes: tuple[str, ...] = ()
    ask: Ask = field(default_factory=Ask)
    #: arm that the log cannot judge -> the reason, and what would change that
    untried: Mapping[ArmName, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
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
    """Compute the verdict from logged rows, which must have features if the policy needs them.

    policy: an untrained policy; copies with its params learn. name: name of the policy in messages.
    Raises InvalidInput if there are fewer questions than folds.
    """
    ask = ask or Ask()
    rated = [row for row in rows if row.reward.has_parts] or rows
    outcomes = outcomes_of(rated)
    untried: Mapping[ArmName, str] = {}
    if outcomes is None:
        faults, untried = _check_log(rows, folds=ask.folds, source=source)
        if faults:
            return _wrong_log(faults, rows=rows)
    judged = rated if outcomes is None else outcomes.rows
    log = memory_log(judged, mixed_arms=True, described=source)
    question = numbered(judged)
    questions = int(question.max()) + 1
    if questions < ask.folds:
        message = f"{questions} different questions cannot be cut in {ask.folds} folds"
        raise InvalidInput(message, field=source, remedy="give more questions")
    settings = settings_in_force(settings, arms=log.log.arms, floor=None)
    folds = held_out_folds(log, question=question, folds=ask.folds)
    price, weights = None, dict[float, str]()
    if all(row.reward.has_parts for row in judged):
        price = _price(judged, weight=settings.reward.weight)
        if ask.everything and serves_prices(policy):
            weights = _frontier_weights(settings, price)
    pmfs, notes = crossfitted_policy(
        policy, weights, name=name, log=log, folds=folds, settings=settings, progress=progress
    )
    if outcomes is None:
        result = replay_pmfs(log, pmfs, folds=ask.folds, progress=progress)
        if result.faults:  # with the policy, replay also checks the log by the policy's importance weights
            return _wrong_log(result.faults, rows=rated)
        ways = _estimated_standings(result, name=name, arms=log.log.arms)
        notes = (*notes, *result.notes, *(f"{arm} {reason}" for arm, reason in untried.items()))
    else:
        shares = {label: _by_question(pmf, question) for label, pmf in pmfs.items()}
        ways = _measured_standings(outcomes, shares, settings=settings, confidence=ask.confidence)
    labels = weights.values()
    standings = _with_roles([way for way in ways if way.name not in labels], untried=untried)
    best = next(standing for standing in standings if "best fixed" in standing.roles)
    advice = Advice(
        verdict="not enough",
        sentence="",
        best=best.name.removeprefix("always "),
        by="replay" if outcomes is None else "every arm",
        questions=questions,
        rows=len(rated),
        standings=standings,
        frontier=tuple(Point(name=way.name, quality=way.quality, cost=way.cost) for way in ways if way.name in labels),
        price=price,
        notes=notes,
        ask=ask,
        untried=untried,
    )
    if outcomes is not None and ask.everything:
        common: dict[str, Any] = {"policy": policy, "ask": ask, "settings": settings, "progress": progress}
        control = _control(outcomes, best=best.name, **common)
        advice = replace(advice, control=control, cold=_cold(outcomes, best=advice.best, **common))
    if np.count_nonzero(log.log.partial):  # type: ignore[arg-type] # None counts as 0
        partial = tuple(replace(standing, gain=None) for standing in standings)
        sentence = (
            f"{advice.verdict}: the log has the probability of the drawn arm only, so a choice per question cannot"
        )
        sentence += f" be judged, and of the fixed arms {advice.best} is the best; log the probability of every arm"
        return replace(advice, standings=partial, sentence=sentence)
    return concluded(advice, gain=best.gain or EstimateWithInterval(value=0.0))


def _price(rows: Sequence[Logged], *, weight: float) -> Price | None:
    pairs = ((row.decision, row.reward) for row in rows)
    means = means_of((d.arm, r.quality, r.cost, r.sample_weight, d.propensity) for d, r in pairs)
    return price_of(means, weight=weight) if len(means) > 1 else None


def _frontier_weights(settings: Settings, price: Price | None) -> dict[float, str]:
    """Returns cost weight -> label, sorted by weight. A label is the weight, with the settings that have this value."""
    named = [
        *((weight, name) for name, weight in settings.cost_weights.items()),
        (settings.reward.weight, "reward.weight"),
    ]
    unit = settings.reward.weight or 1.0
    if price is not None and price.proposed is not None and price.proposed > 0.0:
        unit = price.proposed
        named.append((unit, "proposed"))
    weights: dict[float, str] = {}
    for weight, name in sorted([*named, *((unit * factor, "") for factor in _FRONTIER_FACTORS)]):
        weights[weight] = f"{weights.get(weight, number(weight))} {name}".strip()
    return weights


def _by_question(pmf: Matrix, question: Choices) -> Matrix:
    """One row of `pmf` per question, shape (questions, K). All rows of a question have the same probabilities."""
    _, first = np.unique(question, return_index=True)
    return np.asarray(pmf[first])


def _measured_standings(
    outcomes: Outcomes, shares: Mapping[str, Matrix], *, settings: Settings, confidence: float
) -> list[Standing]:
    """Standings by known outcomes: policies first, then fixed arms. shares: policy -> pmfs of the complete arms."""
    low, high = settings.reward.minimum, settings.reward.maximum
    values = {"reward": outcomes.reward, "quality": outcomes.quality, "cost": outcomes.cost}
    standings, policy_rewards = [], list[Vector]()
    for name, probabilities in shares.items():
        chosen = np.zeros(outcomes.reward.shape)
        chosen[:, outcomes.complete] = probabilities
        expected = {key: np.nansum(chosen * matrix, axis=1) for key, matrix in values.items()}
        policy_rewards.append(expected["reward"])
        standings.append(_standing(outcomes, expected, name=name, chosen=chosen, possible=(low, high)))
    for column, arm in enumerate(outcomes.arms):
        chosen = np.zeros(outcomes.reward.shape)
        chosen[:, column] = 1.0
        of_arm = {key: matrix[:, column] for key, matrix in values.items()}
        gaps = policy_rewards[0] - of_arm["reward"]
        gain = mean_of(gaps[~np.isnan(gaps)], possible=(low - high, high - low), confidence=confidence)
        standing = _standing(outcomes, of_arm, name=f"always {arm}", chosen=chosen, possible=(low, high))
        standings.append(replace(standing, gain=gain))
    return standings


def _standing(
    outcomes: Outcomes, values: Mapping[str, Vector], *, name: str, chosen: Matrix, possible: tuple[float, float]
) -> Standing:
    answered = ~np.isnan(values["reward"])
    return Standing(
        name=name,
        reward=mean_of(values["reward"][answered], possible=possible, confidence=CONFIDENCE),
        quality=EstimateWithInterval(value=float(values["quality"][answered].mean())),
        cost=EstimateWithInterval(value=float(values["cost"][answered].mean())),
        shares=dict(zip(outcomes.arms, map(float, chosen.mean(axis=0)), strict=True)),
        questions=int(answered.sum()),
    )


def _wrong_log(faults: Sequence[str], *, rows: Sequence[Logged]) -> Advice:
    sentence = f"this log is wrong: {'; '.join(faults)}"
    questions = len({row.decision.query.text for row in rows})
    counts: dict[str, Any] = {"questions": questions, "rows": len(rows)}
    return Advice(verdict="wrong log", sentence=sentence, best="", by="replay", standings=(), **counts)


def _check_log(rows: Sequence[Logged], *, folds: int, source: str) -> tuple[Sequence[str], dict[ArmName, str]]:
    """Returns (faults of the log that replay finds, arm that the log cannot judge -> reason)."""
    log = memory_log(rows, mixed_arms=True, described=source)
    result = replay_pmfs(log, {}, folds=folds, progress=no_progress)
    untried = {}
    for candidate in result.candidates:
        arm = ArmName(candidate.name.removeprefix("fixed:"))
        drawn = int(np.count_nonzero(log.log.action == log.log.arms.index(arm)))
        if not drawn:
            untried[arm] = "cannot be judged: it was never drawn, and more rows like these would not change that"
        elif candidate.verdict == "cannot be judged" or candidate.missing is not None:
            times = "once" if drawn == 1 else f"{drawn:,} times"
            untried[arm] = f"cannot be judged: it was drawn {times}, too seldom"
    return result.faults, untried


def _estimated_standings(result: ReplayResult, *, name: str, arms: Sequence[ArmName]) -> list[Standing]:
    """Standings as replay estimates them. Cost weights of the frontier are left out if they have too few rows."""
    gains = {pair.second: pair.difference for pair in result.pairs if pair.first == name}
    return [
        Standing(
            name=candidate.name.replace("fixed:", "always ", 1) if fixed else candidate.name,
            reward=candidate.reward,
            quality=candidate.quality,
            cost=candidate.cost,
            shares={arm: candidate.shares[arm] for arm in arms},
            gain=gains.get(candidate.name),
            questions=result.rows,
        )
        for candidate in result.candidates
        for fixed in [candidate.name.startswith("fixed:")]
        if candidate.name == name or fixed or candidate.missing is None
    ]


def _with_roles(standings: Sequence[Standing], *, untried: Mapping[ArmName, str]) -> tuple[Standing, ...]:
    """Give roles to the fixed arms. An untried arm is neither best nor cheapest, unless all arms are untried."""
    policy, *fixed = standings
    complete = [arm for arm in fixed if arm.questions == policy.questions]
    judged = [arm for arm in complete if arm.name.removeprefix("always ") not in untried] or complete
    best = max(judged, key=lambda arm: arm.reward.value)
    good = [arm for arm in judged if arm.quality.value >= best.quality.value - AS_GOOD]
    roles = {
        "best fixed": best,
        "most expensive": max(fixed, key=lambda arm: arm.cost.value),
        "cheapest that is as good": min(good, key=lambda arm: arm.cost.value),
    }
    marked = [replace(arm, roles=tuple(role for role, holder in roles.items() if holder is arm)) for arm in fixed]
    return (policy, *marked)


def concluded(advice: Advice, *, gain: EstimateWithInterval) -> Advice:
    worth = advice.ask.worth
    verdict: Kind = "not enough"
    value = "what learned routing is worth is not known yet"
    if gain.interval is not None:
        low, high = gain.interval
        by_chance = advice.control is not None and advice.control.value >= gain.value
        if low > 0.0 and not by_chance:
            verdict = "route"
        elif high < worth and advice.questions >= FEWEST_TO_FIX:
            verdict = "fix"
        size = f"{gain.value:+.3f} ({low:+.3f} to {high:+.3f})"
        value = f"learned routing is worth {size} a question over always {advice.best}"
    if advice.ask.alone:
        verdict = "fix"
    elif advice.untried and verdict == "fix":
        verdict = "not enough"
    if verdict == "fix":
        why = "every other arm left the race" if advice.ask.alone else f"{value}, less than {worth:g}"
        sentence = f"always {advice.best}: {why}; do not route"
    elif verdict == "route":
        best = next(standing for standing in advice.standings if "best fixed" in standing.roles)
        sentence = f"{value}, {_quality_and_cost(advice.standings[0], best)}{_break_even(advice)}"
    elif advice.untried:
        reasons = "; ".join(f"{arm} {why}" for arm, why in advice.untried.items())
        sentence = f"{reasons}. Offer {', '.join(advice.untried)} for a while, with a probability that is logged"
    else:
        sentence = f"{value}; {_forecast(gain, questions=advice.questions, worth=worth)}"
    return replace(advice, verdict=verdict, sentence=f"{verdict}: {sentence}")


def _quality_and_cost(policy: Standing, best: Standing) -> str:
    quality = f"quality {policy.quality.value:.3f} instead of {best.quality.value:.3f}"
    if best.cost.value <= 0.0:
        return f"{quality}, cost {number(policy.cost.value)} instead of {number(best.cost.value)}"
    saved = 1.0 - policy.cost.value / best.cost.value
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
    """How many more questions a verdict needs if the gain does not change and its interval narrows like 1 / sqrt(n)."""
    if gain.interval is None:
        return "give more labelled questions"
    half = (gain.interval[1] - gain.interval[0]) / 2.0
    # "route" needs an interval above 0, "fix" an interval below `worth`.
    room = max(gain.value, worth - gain.value)
    further = questions * ((half / room) ** 2 - 1.0) if half < _FARTHEST * room else math.inf
    lacking = FEWEST_TO_FIX - questions
    further = max(further, lacking)
    if further > _FARTHEST:
        return "it is too close to the limit to settle with a realistic number of labelled questions"
    # A rounded number must not be below the `lacking` questions, without which there is no verdict "fix".
    count = f"at least {lacking:,}" if further < 1.5 * lacking else roughly(further)
    return f"{count} more labelled {'question decides' if count.endswith(' 1') else 'questions decide'} it"


def _control(
    outcomes: Outcomes, *, best: str, policy: Policy, ask: Ask, settings: Settings, progress: Progress
) -> EstimateWithInterval | None:
    """The policy's gain over the fixed arm `best`, a standing's name, with outcomes permuted between questions."""
    permuted = outcomes.permuted(seed=0)
    log = memory_log(permuted.rows, mixed_arms=True)
    question = numbered(permuted.rows)
    folds = held_out_folds(log, question=question, folds=ask.folds)
    name = policy.algorithm
    pmfs, _ = crossfitted_policy(policy, {}, name=name, log=log, folds=folds, settings=settings, progress=progress)
    shares = {name: _by_question(pmfs[name], question)}
    standings = _measured_standings(permuted, shares, settings=settings, confidence=CONFIDENCE)
    return next(standing.gain for standing in standings if standing.name == best)


def _cold(
    outcomes: Outcomes, *, best: str, policy: Policy, ask: Ask, settings: Settings, progress: Progress
) -> FirstPass | None:
    table = outcomes.table()
    if len(table.arms) < 2:
        return None
    reward = settings.reward.model_copy(update={"cost": {"steps": 1.0}})  # the table's steps are the logged costs
    settings = settings.model_copy(update={"reward": reward})
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
    passes = [[played_run] for played_run in played(runs, world=world, jobs=1, progress=progress)]
    rewards = outcomes.reward[:, outcomes.complete]
    return first_pass(passes, arms=table.arms, rewards=rewards, incumbent=best, harm=settings.policy.harm)
