"""Diagnosis of what is learned, by the posterior and the newest questions: a state per arm, and one for all.

For each arm, over the newest decisions, with D the arm's value less the incumbent's value (without an incumbent: the
value of the best other arm) by the policy's posterior:

    gain    mean of max(D, 0): the expected gain from playing the arm if it looks better
    worth   mean of max(D, 0) over the posterior's draws, less the gain: the expected gain from knowing the arm
    labels  (s^2 / RESOLUTION^2 - s^2 / d^2) / 4, s^2 the rewards' variance, d^2 the variance of D: settles a question
    wait    labels / (probability of the arm * share of decisions that are labelled), in questions

    steady     worth is below WORTH and the arm is judged often enough, or it has KNOWN times the labels that settle one
               question: then more of them hardly change what is open
    learning   the wait is below PATIENCE questions, or a week of this traffic
    held back  it is longer, but would not be without the restraint to the incumbent
    stuck      it is longer even then
    drifting   the arm's rewards changed a few rows ago; it is learned again
    starved    (of all arms) no label came with the newest decisions

The state of all arms is the first that applies: starved; drifting (any arm); stuck (all arms, or all but one); held
back, learning (any arm); steady.
Rewards are counted at the weight of cost of the reward setting, whatever prices or budgets the questions were served
at. They steer nothing. After the value of information (Howard 1966) and knowledge gradients (Frazier et al. 2008).

Frontier of the policy that serves: the expected quality and cost of the newest questions at each weight of cost, by
the policy's own estimates under the probabilities that it would serve at the weight, floors and restraint included. The
cost is multiplied by the ratio of observed to expected cost of the newest outcomes, which corrects biased estimates.
An aim (a share of the best fixed arm's quality, or a mean of steps or dollars) becomes the weight at which the frontier
reaches it: price as the dual variable of a mean constraint. Beyond the frontier's ends it becomes an end.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import mul
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from sqlalchemy import select

from ragbandit.router.config.settings import RewardSettings, Settings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.policies.base import Policy, PolicyOutput, policy_age, serves_prices
from ragbandit.router.policies.draw import drawn_by_arms, outputs_of, with_floor
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, pace
from ragbandit.shared.formats import counted, number, percent, roughly
from ragbandit.shared.types import MAX_WEIGHT, ArmName, Decision, Outcome

LearningState = Literal["steady", "learning", "held back", "stuck", "drifting", "starved"]
#: the stored word for "steady", which earlier releases read
_OF_BEFORE: Final = '"state":"decided"', '"state":"steady"'

#: reward a question below which knowing an arm better does not pay
WORTH: Final = 0.005
#: difference of reward that is to be told apart
RESOLUTION: Final = 0.02
#: questions that learning may take
PATIENCE: Final = 10_000.0
_WEEK_S: Final = 7 * 86_400.0
#: forecasts of at least this are given as an order of magnitude
_EXACT: Final = 10_000
#: multiple of the labels that settle one question, at which an arm lacks none
KNOWN: Final = 10.0
#: share of the decisions below which labels are few
FEW: Final = 0.1
#: newest decisions that are looked at
LATEST: Final = 100
#: decisions in a row without a label after which learning starves
STARVED: Final = 500
#: rows of an arm since its alarm, while it counts as drifting
_ANEW: Final = 100

#: what to do about a state; {arm} is the arm
REMEDIES: Final[Mapping[LearningState, str]] = {
    "steady": "nothing to do",
    "learning": "nothing to do: it learns {arm} from the labels that come",
    "held back": "the restraint to the incumbent lets too few questions have {arm}: raise policy.harm, or label {arm}",
    "stuck": "too few labels of {arm} come: label its answers, raise policy.floor, or use `ragbandit advise --warm`",
    "drifting": "the rewards of {arm} changed, and it is learned again: look at what changed behind it",
    "starved": "no labels come: send labels, ratings or a judge's scores (docs/feedback.md)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmDiagnosis:
    """How far an arm is learned."""

    state: LearningState
    #: reward a question that knowing the arm would bring, >= 0
    worth: float
    #: labels of the arm that would tell, >= 0
    labels: int
    #: questions until these labels have come, by the newest decisions; None: never
    questions: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """How far a policy has learned."""

    state: LearningState
    arms: Mapping[ArmName, ArmDiagnosis] = field(default_factory=dict)
    #: judged answers learned, by arm; empty in diagnoses of earlier releases
    judged: Mapping[ArmName, int] = field(default_factory=dict)
    #: the arm that the others are held back to, and the reward that may be lost before that promise is broken
    incumbent: ArmName | None = None
    slack: float | None = None
    #: decisions since the newest that was learned
    unlabelled: int = 0
    #: share of all decisions whose outcome is learned; None in diagnoses of earlier releases
    labelled: float | None = None

    @property
    def remedy(self) -> str:
        """What to do, of the arms that the state is about."""
        return REMEDIES[self.state].format(arm=", ".join(self._arms(self.state)))

    @property
    def sentence(self) -> str:
        """Why the state is what it is, with its numbers."""
        match self.state:
            case "starved":
                return f"no label came with the newest {self.unlabelled:,} decisions"
            case "drifting":
                text = f"the rewards of {', '.join(self._arms('drifting'))} changed a few rows ago"
            case "stuck":
                known = ", ".join(arm for arm in self.arms if arm not in self._arms("stuck"))
                return f"no arm{known and f' but {known}'} is tried enough to know: {self._needs('stuck')}"
            case "held back":
                text = (
                    f"the promise to {self.incumbent or 'the incumbent'}{self._slack} lets too few questions try others"
                )
                text += f": {self._needs('held back')}"
            case "learning":
                text = self._needs("learning")
            case "steady":
                text = f"knowing an arm better would bring less than {WORTH:g} of reward a question"
        stuck = ", ".join(self._arms("stuck"))
        return f"{text}; too few labels come of {stuck}" if stuck else text

    @property
    def line(self) -> str:
        """Word, sentence, and what to do where there is something."""
        remedy = "" if self.state in ("steady", "learning") else f"; {self.remedy}"
        if self.state in ("learning", "held back", "stuck") and self.labelled is not None and self.labelled < FEW:
            remedy += f"; {percent(self.labelled)} of the decisions are labelled: label the first ones (judge.first)"
        return f"{self.state}: {self.sentence}{remedy}"

    @property
    def _slack(self) -> str:
        if self.slack is None:
            return ""
        return f" ({'slack' if self.slack >= 0.0 else 'broken by'} {number(abs(self.slack))} of reward)"

    def _arms(self, state: LearningState) -> list[ArmName]:
        return [arm for arm, one in self.arms.items() if one.state == state]

    def _needs(self, state: LearningState) -> str:
        return "; ".join(f"{arm} {self._need(arm)}" for arm in self._arms(state))

    def _need(self, arm: ArmName) -> str:
        one = self.arms[arm]
        judged = f"has {counted(self.judged[arm], 'judged answer')} and " if arm in self.judged else ""
        noun = "question" if one.questions == 1 else "questions"
        wait = "none are expected" if one.questions is None else f"{_about(one.questions, ' of')} {noun}"
        return f"{judged}needs {'about ' * (one.labels < _EXACT)}{_about(one.labels)} more ({wait} at this rate)"


def _about(count: int, of: str = "") -> str:
    return f"{count:,}" if count < _EXACT else f"{roughly(count)}{of}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The newest decisions, newest last, and the share of decisions whose outcome is learned."""

    decisions: Sequence[Decision]
    labelled: float
    #: weight of cost of the outputs that are diagnosed; None for the weight of the last row
    weight: float | None = None

    @property
    def patience(self) -> float:
        """Questions that learning may take: the larger of PATIENCE and a week's questions at this pace."""
        times = [one.made_at for one in self.decisions]
        return max(PATIENCE, pace(len(times) - 1, first=times[0], until=times[-1]) * _WEEK_S)


def diagnosed(
    policy: Policy, outputs: Sequence[PolicyOutput], *, traffic: Traffic, floors: Callable[[int], float]
) -> Diagnosis | None:
    """The diagnosis of a policy that has these outputs for the newest decisions; None if it has no posterior.

    floors: number of arms on offer -> the floor of each, before any restraint.
    """
    noise = getattr(policy, "noise", None)
    if noise is not None and traffic.weight is not None:
        noise = policy.noise_at(traffic.weight)  # type: ignore[attr-defined]
    if noise is None or not outputs or any(one.deviations is None or one.scores is None for one in outputs):
        return None
    evidence: dict[ArmName, list[_Evidence]] = {}
    for output, decision in zip(outputs, traffic.decisions, strict=True):
        free = with_floor(output.pmf, floor=floors(len(decision.arms)))
        for place, arm in enumerate(decision.arms):
            if len(decision.arms) > 1:
                evidence.setdefault(arm, []).append(_evidence(output, decision, place=place, free=free[place]))
    anew = {arm for arm in getattr(policy, "alarms", {}) if policy_age(policy, arm) < _ANEW}
    judged = {arm: int(min(policy.seen.get(arm, 0), policy_age(policy, arm))) for arm in sorted(evidence)}
    arms = {
        arm: _of_arm(evidence[arm], noise=float(noise), traffic=traffic, judged=count, is_drifting=arm in anew)
        for arm, count in judged.items()
    }
    restraint = outputs[-1].restraint
    return Diagnosis(
        state=_of_all([one.state for one in arms.values()]),
        arms=arms,
        judged=judged,
        incumbent=None if restraint is None else restraint.arm,
        slack=None if restraint is None else restraint.slack,
        labelled=traffic.labelled,
    )


def _of_all(states: Sequence[LearningState]) -> LearningState:
    """The word of all arms."""
    if "drifting" in states:
        return "drifting"
    if "stuck" in states and len(states) - states.count("stuck") <= 1:
        return "stuck"
    return "held back" if "held back" in states else "learning" if "learning" in states else "steady"


def diagnose(ledger: Ledger, policy: Policy, *, settings: Settings, encoder_hash: str) -> str | None:
    """The diagnosis of a ledger's policy by the newest decisions in the store, as JSON; None if it has none."""
    if getattr(policy, "noise", None) is None:
        return None
    newest = newest_questions(ledger, limit=LATEST, encoder_hash=encoder_hash)
    if not newest:
        return None
    features, weight = np.array([one.features for one in newest]), settings.reward.weight
    queries = [replace(one.query, cost_weight=weight) for one in newest]
    outputs = outputs_of(policy, queries, features=features, arms=[one.arms for one in newest])
    sound = [one for one in outputs if isinstance(one, PolicyOutput)]
    if len(sound) < len(outputs):  # its decisions report a policy that breaks its contract
        return None
    labelled = min(ledger.last_seq() / max(ledger.decided(), 1), 1.0)
    traffic = Traffic(decisions=newest, labelled=labelled, weight=weight)
    read = diagnosed(policy, sound, traffic=traffic, floors=settings.policy.floor_of)
    return None if read is None else canonical(asdict(read)).replace(_OF_BEFORE[1], _OF_BEFORE[0])


def newest_questions(ledger: Ledger, *, limit: int, encoder_hash: str) -> list[Decision]:
    """The newest decisions that have features of this encoder, of one length and finite, oldest first."""
    newest = ledger.newest_decisions(limit=limit, encoder_hash=encoder_hash)
    whole = [one for one in newest if one.features is not None and np.isfinite(one.features).all()]
    sizes = Counter(0 if one.features is None else one.features.size for one in whole).most_common(1)
    return [one for one in whole if one.features is not None and one.features.size == sizes[0][0]]


def read_diagnosis(text: str | None, *, unlabelled: int) -> Diagnosis | None:
    """The diagnosis of its JSON. unlabelled: decisions since the newest that was learned; STARVED or more starve."""
    if text is None and unlabelled < STARVED:
        return None
    values: dict[str, Any] = {"state": "starved"} if text is None else json.loads(text.replace(*_OF_BEFORE))
    values["arms"] = {arm: ArmDiagnosis(**one) for arm, one in values.get("arms", {}).items()}
    values |= {"unlabelled": unlabelled} | ({"state": "starved"} if unlabelled >= STARVED else {})
    return Diagnosis(**values)


class _Evidence(NamedTuple):
    worth: float
    variance: float
    #: probability of the arm as it was served, and without any restraint
    served: float
    free: float


def _evidence(output: PolicyOutput, decision: Decision, *, place: int, free: float) -> _Evidence:
    assert output.deviations is not None
    assert output.scores is not None
    scores, arms = output.scores, decision.arms
    incumbent = None if output.restraint is None else output.restraint.arm
    best = max((other for other in range(len(arms)) if other != place), key=scores.__getitem__)
    rival = arms.index(incumbent) if incumbent in arms and arms[place] != incumbent else best
    gap, apart = scores[place] - scores[rival], output.deviations[place] - output.deviations[rival]
    worth = float(np.maximum(gap + apart, 0.0).mean()) - max(gap, 0.0)
    return _Evidence(worth, variance=float((apart * apart).mean()), served=decision.pmf[place], free=free)


def _of_arm(
    evidence: Sequence[_Evidence], *, noise: float, traffic: Traffic, judged: int, is_drifting: bool
) -> ArmDiagnosis:
    count = len(evidence)
    worth = max(math.fsum(one.worth for one in evidence) / count, 0.0)
    variance = math.fsum(one.variance for one in evidence) / count
    settles, few = (noise / RESOLUTION) ** 2 / 4.0, FEWEST_EFFECTIVE - judged
    is_known = judged >= max(KNOWN * settles, FEWEST_EFFECTIVE)
    labels = 0.0 if is_known or variance <= 0.0 else max(settles - noise**2 / variance / 4.0, 0.0)
    if few > 0:  # a posterior that is sure without them is sure of its prior
        labels = float(few) if worth < WORTH else max(labels, float(few))
    wait, free = (
        labels / chance if (chance := traffic.labelled * math.fsum(part) / count) > 0.0 else math.inf
        for part in ([one.served for one in evidence], [one.free for one in evidence])
    )
    state: LearningState = "stuck"
    if is_drifting:
        state = "drifting"
    elif is_known or (worth < WORTH and few <= 0):
        state = "steady"
    elif wait < traffic.patience:
        state = "learning"
    elif free < traffic.patience:
        state = "held back"
    questions = None if math.isinf(wait) else math.ceil(wait)
    return ArmDiagnosis(state=state, worth=worth, labels=math.ceil(labels), questions=questions)


#: from one computation to the next, seconds: it takes as long as some thousand decisions
EVERY_S: Final = 60.0
#: questions, and rows learned, before there is a frontier; the newest questions and outcomes that it is made of
LEAST: Final = 50
QUESTIONS: Final = 100
OUTCOMES: Final = 500
#: weights besides 0, as multiples of 1 / (most expensive less cheapest arm)
_WEIGHTS: Final = tuple(np.geomspace(0.01, 30.0, 24).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """Expected quality and cost (in units of `reward.cost`) of a question at each weight, the lowest weight first."""

    weights: tuple[float, ...]
    quality: tuple[float, ...]
    cost: tuple[float, ...]
    #: mean quality of the best fixed arm
    best: float

    def weight_of(self, *, quality: float | None = None, cost: float | None = None) -> float:
        """The highest weight with this share of the best arm's quality; or that of this mean cost."""
        values, wanted = (self.cost, cost) if cost is not None else (self.quality, (quality or 0.0) * self.best)
        # The last of equal points counts; a value beyond an end gives that end.
        return float(np.interp(-wanted, -np.minimum.accumulate(values), self.weights))


def frontier_of(policy: Policy, decisions: Sequence[Decision], *, settings: Settings, scale: float) -> Frontier | None:
    """The frontier on the questions of these decisions, which have features of one length; None where there is none.

    scale: what outcomes cost for each unit that was expected of them.
    """
    chosen = [one for one in decisions if len(one.arms) > 1]
    if len(chosen) < LEAST or sum(policy.seen.values()) < LEAST or not serves_prices(policy):
        return None
    features, arms = np.array([one.features for one in chosen]), [one.arms for one in chosen]

    def asked(weight: float) -> tuple[list[Any], list[Any]]:
        queries = [replace(one.query, cost_weight=weight) for one in chosen]
        outputs = outputs_of(policy, queries, features=features, arms=arms)
        drawn = drawn_by_arms(outputs, arms=arms, seeds=[0] * len(arms), settings=settings, seen=policy.seen)
        return [one.facts for one in outputs if isinstance(one, PolicyOutput)], [one.pmf for one in drawn]

    facts, _ = asked(0.0)
    spread = math.fsum(max(one["cost"]) - min(one["cost"]) for one in facts) / len(chosen)
    if len(facts) < len(chosen) or not spread > 0.0:
        return None
    weights = [0.0, *(min(times / spread, MAX_WEIGHT) for times in _WEIGHTS)]
    heads: dict[str, list[float]] = {"quality": [], "cost": []}
    for weight in weights:
        facts, pmfs = asked(weight)
        for head, means in heads.items():
            sums = (math.fsum(map(mul, pmf, one[head])) for pmf, one in zip(pmfs, facts, strict=True))
            means.append(math.fsum(sums) / len(chosen))
    by_arm: dict[str, list[float]] = {}
    for one, offered in zip(facts, arms, strict=True):
        for arm, quality in zip(offered, one["quality"], strict=True):
            by_arm.setdefault(arm, []).append(quality)
    return Frontier(
        weights=tuple(weights),
        quality=tuple(heads["quality"]),
        cost=tuple(scale * cost for cost in heads["cost"]),
        best=max(math.fsum(some) / len(some) for some in by_arm.values()),
    )


def cost_scale(pairs: Sequence[tuple[Decision, Outcome]], *, terms: Mapping[str, float]) -> float:
    """What outcomes cost for each unit that the policy expected when it decided; 1 of fewer than LEAST."""
    expected, observed = [], []
    for decision, outcome in pairs:
        costs = decision.facts.get("cost")
        if isinstance(costs, list) and len(costs) == len(decision.arms) > 1:
            expected.append(float(costs[decision.arms.index(decision.arm)]))
            observed.append(cost_of_terms(outcome.steps, outcome.cost, terms=terms))
    total = math.fsum(expected)
    return math.fsum(observed) / total if len(expected) >= LEAST and total > 0.0 else 1.0


def frontier_text(ledger: Ledger, policy: Policy, *, settings: Settings, encoder_hash: str) -> str | None:
    """The frontier of a ledger's policy by the newest decisions and outcomes, as JSON; None if it serves no prices."""
    if not serves_prices(policy):
        return None
    scale = cost_scale(ledger.newest_outcomes(limit=OUTCOMES), terms=settings.reward.cost)
    newest = newest_questions(ledger, limit=QUESTIONS, encoder_hash=encoder_hash)
    frontier = frontier_of(policy, newest, settings=settings, scale=scale)
    return None if frontier is None else canonical(asdict(frontier))


def read_frontier(text: str | None) -> Frontier | None:
    """The frontier of its JSON."""
    if text is None:
        return None
    known = json.loads(text)
    lists = {name: tuple(known[name]) for name in ("weights", "quality", "cost")}
    return Frontier(**lists, best=known["best"])


#: outcomes that are looked at
NEWEST: Final = 100


def costs_alike(database: Database, *, reward: RewardSettings, arms: Iterable[str]) -> str | None:
    """A warning if the newest NEWEST answers of these arms all cost the same, else None. Raises StoreError.

    None also if there are fewer answers, if one of the arms gave none, and if the reward charges nothing.
    """
    arms = tuple(arms)
    charged = {term: price for term, price in reward.cost.items() if price > 0.0}
    if not charged or reward.weight == 0.0:
        return None
    answers = (
        select(decisions.c.arm, outcomes.c.steps, outcomes.c.cost)
        .join(decisions, decisions.c.id == outcomes.c.decision_id)
        .where(outcomes.c.status == "answered")
        .order_by(outcomes.c.made_at.desc())
        .limit(NEWEST)
    )
    with database.read() as connection:
        rows = connection.execute(answers).all()
    costs = {cost_of_terms(row.steps, cost_value(row.cost), terms=charged) for row in rows}
    if len(rows) < NEWEST or not set(arms) <= {row.arm for row in rows} or len(arms) < 2 or len(costs) > 1:
        return None
    terms = " and ".join(charged)
    return (
        f"all arms cost the same, {number(costs.pop())}, in the newest {NEWEST} answers: the policy takes the best, "
        f"whatever it costs; report {terms} of each answer, or charge what differs (reward.cost)"
    )
