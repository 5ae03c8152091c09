"""Diagnosis: how far a policy has learned each arm, by its posterior for the newest questions.

For an arm and a question, D is the arm's value minus the incumbent's (for the incumbent, and without one, minus that of
the best other arm). E is the mean over the policy's posterior, d^2 the variance of D, and s^2 the variance of rewards.
Each number is a mean over the newest questions:

    gain    max(E D, 0): expected gain from playing the arm if it looks better
    worth   E max(D, 0), minus the gain: expected further gain from knowing the arm's value
    labels  (s^2 / RESOLUTION^2 - s^2 / d^2) / 4: number of further labels that settle a question
    wait    labels / (probability of the arm * share of labelled decisions): number of questions until these labels

    steady     worth is below WORTH and the arm has enough judgements, or it has KNOWN times the labels of one question
    learning   the wait is below PATIENCE questions, or below a week of this traffic
    held back  the wait is longer, but would be short without the restraint to the incumbent
    stuck      the wait would also be long without the restraint
    drifting   the arm's rewards changed a few rows ago, so the arm is learned again
    starved    state of all arms together: the newest decisions have no label

After the value of information (Howard 1966) and knowledge gradients (Frazier et al. 2008). Diagnoses do not influence
decisions.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.policies.base import Policy, PolicyOutput, policy_age
from ragbandit.router.policies.draw import outputs_of, with_floor
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.texts.formats import counted, number, percent, rough_count
from ragbandit.shared.types import ArmName, Decision

LearningState = Literal["steady", "learning", "held back", "stuck", "drifting", "starved"]

#: gain in reward per question below which knowing an arm better is not worth it
WORTH: Final = 0.005
#: smallest difference between rewards that the labels must show
RESOLUTION: Final = 0.02
PATIENCE: Final = 10_000.0  #: number of questions that an arm's labels may take, unless a week has more questions
_WEEK_S: Final = 7 * 86_400.0
#: an arm needs no more labels if it has this many times the labels that settle one question
KNOWN: Final = 10.0
#: share of labelled decisions below which the diagnosis recommends more labels
FEW: Final = 0.1
LATEST: Final = 100  #: number of newest decisions that are diagnosed
#: number of newest decisions without a label that makes the state "starved"
STARVED: Final = 500
#: an arm is "drifting" for this number of its rows after an alarm
_DRIFT_ROWS: Final = 100

REMEDIES: Final[Mapping[LearningState, str]] = {
    "steady": "nothing to do",
    "learning": "nothing to do: it learns {arm} from the labels that come",
    "held back": "the restraint to the incumbent lets too few questions have {arm}: raise policy.harm, or label {arm}",
    "stuck": "too few labels of {arm} come: label its answers, raise policy.floor, or start warm (docs/advise.md)",
    "drifting": "look at what changed behind {arm}, which is learned again",
    "starved": "no labels come: send labels, ratings or a judge's scores (docs/feedback.md)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmDiagnosis:
    state: LearningState
    #: reward per question that knowing the arm would add, >= 0
    worth: float
    #: number of labels that the arm still needs, >= 0
    labels: int
    #: expected number of questions until the arm has these labels; None if it is never drawn, or nothing is labelled
    questions: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    state: LearningState
    arms: Mapping[ArmName, ArmDiagnosis] = field(default_factory=dict)
    judged: Mapping[ArmName, int] = field(default_factory=dict)
    incumbent: ArmName | None = None
    #: reward that may still be lost against the incumbent; None if the policy has no incumbent
    slack: float | None = None
    unlabelled: int = 0  #: number of decisions since the last learned one
    #: share of all decisions that were learned; None in diagnoses of earlier releases
    labelled: float | None = None
    #: what decides most questions instead of the policy, in words; None if the policy does. This field is not stored
    decides: str | None = None
    #: when the drifting arms changed and what followed, in words; None if not read. This field is not stored
    changes: str | None = None

    def with_decider(self, decides: str | None) -> "Diagnosis":
        """The diagnosis with `decides`, if this is not None: "steady" and "learning" then become "held back".

        decides: what decides most questions, in words; None if the policy decides
        """
        if decides is None:
            return self
        state = "held back" if self.state in ("steady", "learning") else self.state
        return replace(self, state=state, decides=decides.partition(";")[0])

    @property
    def own_state(self) -> LearningState:
        """The state that follows from the arms, whatever decides now."""
        if self.state == "held back" and not self._arms("held back"):
            return "learning" if self._arms("learning") else "steady"
        return self.state

    @property
    def remedy(self) -> str:
        arms = self._arms(self.state)
        if self.state == "held back" and not arms:
            return "nothing to do: it ends as more is learned, or with the budget's period"
        return REMEDIES[self.state].format(arm=", ".join(arms))

    @property
    def to_do(self) -> str:
        """The remedy if something should be done, else ""."""
        return "" if self.remedy.startswith("nothing to do") else self.remedy

    @property
    def sentence(self) -> str:
        """What decides instead of the policy, if anything, and the reason for the state."""
        learned = self._learned
        return learned if self.decides is None else f"{self.decides}; {learned}"

    @property
    def _learned(self) -> str:
        match self.own_state:
            case "starved":
                return f"no label came with the newest {self.unlabelled:,} decisions"
            case "drifting":
                text = self.changes or f"the rewards of {', '.join(self._arms('drifting'))} have changed"
            case "stuck":
                others = ", ".join(arm for arm in self.arms if arm not in self._arms("stuck"))
                return f"no arm{others and f' but {others}'} is tried enough to know: {self._needs('stuck')}"
            case "held back":
                promise = f"the promise to {self.incumbent or 'the incumbent'}"
                if self.slack is not None:
                    promise += f" ({'slack' if self.slack >= 0.0 else 'broken by'} {number(abs(self.slack))} of reward)"
                text = f"{promise} lets too few questions try others: {self._needs('held back')}"
            case "learning":
                text = self._needs("learning")
            case "steady":
                judged = ", ".join(f"{arm} {self.judged[arm]:,}" for arm in self._arms("steady") if arm in self.judged)
                text = "by its own estimate the policy needs no more rated answers"
                text += f" (it has learned {judged})" if judged else ""
        stuck = ", ".join(self._arms("stuck"))
        return f"{text}; too few labels come of {stuck}" if stuck else text

    @property
    def line(self) -> str:
        """The state and its reason, and the remedy if something should be done."""
        remedy = f"; {self.to_do}" if self.to_do else ""
        if self.state in ("learning", "held back", "stuck") and self.labelled is not None and self.labelled < FEW:
            remedy += f"; {percent(self.labelled)} of the decisions are labelled: label the first ones (judge.first)"
        return f"{self.state}: {self.sentence}{remedy}"

    def _arms(self, state: LearningState) -> list[ArmName]:
        return [arm for arm, diagnosis in self.arms.items() if diagnosis.state == state]

    def _needs(self, state: LearningState) -> str:
        return "; ".join(f"{arm} {self._need(arm)}" for arm in self._arms(state))

    def _need(self, arm: ArmName) -> str:
        """Names no number of questions, because the arm's share of them may change fiftyfold while it is learned."""
        judged = f"has {counted(self.judged[arm], 'rated answer')} and " if arm in self.judged else ""
        return f"{judged}needs {rough_count(self.arms[arm].labels)} more"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewestDecisions:
    """The newest decisions of a ledger, oldest first."""

    decisions: Sequence[Decision]
    labelled: float
    #: cost weight of the outputs; None if it is the weight of the last learned row
    weight: float | None = None

    @property
    def patience(self) -> float:
        """Number of questions that learning may take: PATIENCE, or the questions of a week if these are more."""
        times = [decision.made_at for decision in self.decisions]
        return max(PATIENCE, (len(times) - 1) / max(times[-1] - times[0], 1.0) * _WEEK_S)


def diagnose_outputs(
    policy: Policy, outputs: Sequence[PolicyOutput], *, traffic: NewestDecisions, floors: Callable[[int], float]
) -> Diagnosis | None:
    """Diagnose a policy by its outputs for the newest decisions; None if the policy has no posterior.

    floors: number of offered arms -> floor of each arm, before any restraint.
    """
    noise = getattr(policy, "noise", None)
    if noise is not None and traffic.weight is not None:
        noise = policy.noise_at(traffic.weight)  # type: ignore[attr-defined]
    if noise is None or not outputs or any(o.deviations is None or o.scores is None for o in outputs):
        return None
    evidence: dict[ArmName, list[_Evidence]] = {}
    for output, decision in zip(outputs, traffic.decisions, strict=True):
        free = with_floor(output.pmf, floor=floors(len(decision.arms)))
        for place, arm in enumerate(decision.arms if len(decision.arms) > 1 else ()):
            evidence.setdefault(arm, []).append(_evidence(output, decision, place=place, free=free[place]))
    drifting = {arm for arm in getattr(policy, "alarms", {}) if policy_age(policy, arm) < _DRIFT_ROWS}
    judged = {arm: int(min(policy.seen.get(arm, 0), policy_age(policy, arm))) for arm in sorted(evidence)}
    arms = {
        arm: _diagnose_arm(evidence[arm], noise=float(noise), traffic=traffic, judged=count, drifts=arm in drifting)
        for arm, count in judged.items()
    }
    restraint = outputs[-1].restraint
    return Diagnosis(
        state=_common_state([diagnosis.state for diagnosis in arms.values()]),
        arms=arms,
        judged=judged,
        incumbent=None if restraint is None else restraint.arm,
        slack=None if restraint is None else restraint.slack,
        labelled=traffic.labelled,
    )


def _common_state(states: Sequence[LearningState]) -> LearningState:
    if "drifting" in states:
        return "drifting"
    if "stuck" in states and len(states) - states.count("stuck") <= 1:
        return "stuck"
    if "held back" in states:
        return "held back"
    return "learning" if "learning" in states else "steady"


def diagnose(
    ledger: Ledger, policy: Policy, *, settings: PolicySettings, weight: float, encoder_hash: str
) -> str | None:
    """Diagnose a ledger's policy by the newest decisions. Returns JSON; None without decisions or a posterior.

    weight: cost weight of questions without a price
    """
    if getattr(policy, "noise", None) is None:
        return None
    newest = newest_questions(ledger, limit=LATEST, encoder_hash=encoder_hash)
    if not newest:
        return None
    features = np.array([decision.features for decision in newest])
    queries = [replace(decision.query, cost_weight=weight) for decision in newest]
    outputs = outputs_of(policy, queries, features=features, arms=[decision.arms for decision in newest])
    valid = [output for output in outputs if isinstance(output, PolicyOutput)]
    if len(valid) < len(outputs):
        return None
    labelled = min(ledger.last_seq() / max(ledger.count_decided(), 1), 1.0)
    traffic = NewestDecisions(decisions=newest, labelled=labelled, weight=weight)
    diagnosis = diagnose_outputs(policy, valid, traffic=traffic, floors=settings.floor_of)
    if diagnosis is None:
        return None
    stored = asdict(diagnosis)
    del stored["decides"], stored["changes"]  # computed at each read; the former release would refuse these keys
    return canonical(stored)


def newest_questions(ledger: Ledger, *, limit: int, encoder_hash: str) -> list[Decision]:
    """The newest decisions with finite features of this encoder, all of the most frequent length; oldest first."""
    newest = ledger.newest_decisions(limit=limit, encoder_hash=encoder_hash)
    finite = (item for item in newest if item.features is not None and np.isfinite(item.features).all())
    pairs = [(item, item.features.size) for item in finite if item.features is not None]
    sizes = Counter(size for _, size in pairs).most_common(1)
    return [decision for decision, size in pairs if size == sizes[0][0]]


def read_diagnosis(text: str | None, *, unlabelled: int) -> Diagnosis | None:
    """Parse a diagnosis; None without text, unless it is starved. unlabelled: decisions since the last learned one."""
    if text is None and unlabelled < STARVED:
        return None
    values: dict[str, Any] = {} if text is None else json.loads(text)
    values["arms"] = {arm: ArmDiagnosis(**diagnosis) for arm, diagnosis in values.get("arms", {}).items()}
    if unlabelled >= STARVED:
        values["state"] = "starved"
    return Diagnosis(**values | {"unlabelled": unlabelled})


class _Evidence(NamedTuple):
    worth: float
    variance: float
    #: probability of the arm when the question was served
    served: float
    #: probability of the arm without any restraint
    free: float


def _evidence(output: PolicyOutput, decision: Decision, *, place: int, free: float) -> _Evidence:
    assert output.deviations is not None
    assert output.scores is not None
    scores, arms = output.scores, decision.arms
    incumbent = None if output.restraint is None else output.restraint.arm
    best = max((index for index in range(len(arms)) if index != place), key=scores.__getitem__)
    rival = arms.index(incumbent) if incumbent in arms and arms[place] != incumbent else best
    gap = scores[place] - scores[rival]
    deviation = output.deviations[place] - output.deviations[rival]
    worth = float(np.maximum(gap + deviation, 0.0).mean()) - max(gap, 0.0)
    return _Evidence(worth, variance=float((deviation * deviation).mean()), served=decision.pmf[place], free=free)


def _diagnose_arm(
    evidence: list[_Evidence], *, noise: float, traffic: NewestDecisions, judged: int, drifts: bool
) -> ArmDiagnosis:
    worths, variances, served, free = map(math.fsum, zip(*evidence, strict=True))
    count = len(evidence)
    worth, variance = max(worths / count, 0.0), variances / count
    settles, missing = (noise / RESOLUTION) ** 2 / 4.0, FEWEST_EFFECTIVE - judged
    is_known = judged >= max(KNOWN * settles, FEWEST_EFFECTIVE)
    labels = 0.0 if is_known or variance <= 0.0 else max(settles - noise**2 / variance / 4.0, 0.0)
    if missing > 0:  # with fewer than FEWEST_EFFECTIVE judgements the posterior is hardly more than its prior
        labels = float(missing) if worth < WORTH else max(labels, float(missing))
    chances = [traffic.labelled * probability / count for probability in (served, free)]
    wait, free_wait = (labels / chance if chance > 0.0 else math.inf for chance in chances)
    state: LearningState = "stuck"
    if drifts:
        state = "drifting"
    elif is_known or (worth < WORTH and missing <= 0):
        state = "steady"
    elif wait < traffic.patience:
        state = "learning"
    elif free_wait < traffic.patience:
        state = "held back"
    questions = None if math.isinf(wait) else math.ceil(wait)
    return ArmDiagnosis(state=state, worth=worth, labels=math.ceil(labels), questions=questions)
