"""Rules that turn the evidence on a version into a verdict. Pure: equal evidence gives an equal verdict."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from ragbandit.router.comparison import Comparison, Verdict, compare
from ragbandit.router.comparison.words import sentence
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts.evidence import Array, Draws, LiveDifference, Predictions, RewardDifference
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.formats import number
from ragbandit.shared.types import Json, PolicyVersion

#: a version is faulty if it gave no usable pmf for at least this share of decisions, and for at least _LEAST_FAULTS
_FAULTS: Final = 0.05
_LEAST_FAULTS: Final = 20
_COMPARISON: Final = TypeAdapter(Comparison)


@dataclass(kw_only=True, slots=True)
class Evidence:
    settings: RolloutSettings
    champion: str = "the champion"
    #: message that arms are not drawn with the logged probabilities (`ragbandit_sample_ratio_uneven`); None if they are
    alarm: str | None = None
    faults: int = 0  #: answered questions for which the version gave no pmf
    rewards: RewardDifference = field(init=False)
    failures: LiveDifference = field(init=False)
    cost: LiveDifference = field(init=False)

    def __post_init__(self) -> None:
        low, high = self.settings.alpha, self.settings.rollback_alpha
        self.rewards = RewardDifference(low_alpha=low, high_alpha=high)
        self.failures = LiveDifference(low_alpha=high, high_alpha=high)
        self.cost = LiveDifference(low_alpha=low, high_alpha=high, top=0.0, predictions=Predictions(start=0.0))

    def add(self, draws: Draws, *, failed: Array, cost: Array) -> None:
        """Add outcomes, rated or not. failed: 1.0 if the answer failed or was too slow, else 0.0, shape (n,)."""
        self.failures.add(draws, value=failed)
        self.cost.add(draws, value=cost)

    @property
    def questions(self) -> int:
        """Answered questions for which the version gave a pmf."""
        return self.failures.rows

    @property
    def fault(self) -> str | None:
        """Why the version is faulty; None if it is not."""
        questions = self.questions + self.faults
        is_faulty = self.faults >= max(_FAULTS * questions, _LEAST_FAULTS)
        return f"it gave no pmf for {self.faults} of {questions} decisions" if is_faulty else None

    def comparison(self, version: PolicyVersion, *, now: float) -> Comparison:
        return compare(
            version.name,
            self.champion,
            design="live traffic",
            questions=max(self.questions, self.rewards.rows),
            rated=self.rewards.rows,
            reward=self.rewards.difference,
            cost=self.cost.difference,
            confidence=1.0 - self.settings.alpha - self.settings.rollback_alpha,
            seconds=max(now - version.since, 0.0),
            needed=FEWEST_EFFECTIVE,
            blocked=self.alarm or (self.fault and f"fewer faults: {self.fault}"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictFinding:
    #: verdict of the comparison, or why the version is rolled back: it does harm, or the log is no evidence
    kind: Verdict | Literal["rollback", "invalid"]
    reason: str
    waits_for: str = ""
    comparison: Comparison = field(compare=False)  #: its numbers are rounded differently with other pages

    @property
    def rolls_back(self) -> bool:
        return self.kind in ("rollback", "invalid")


def decide(version: PolicyVersion, *, evidence: Evidence, now: float) -> VerdictFinding:
    """The verdict on a version. Only harm has an action, the rollback; everything else is for a person to do."""
    comparison = evidence.comparison(version, now=now)
    if evidence.alarm is not None:
        reason = f"the log contradicts its propensities, so it is no evidence: {evidence.alarm}"
        verify = "a person: ragbandit verify"
        return VerdictFinding(kind="invalid", reason=reason, waits_for=verify, comparison=comparison)
    harm = _harm(version, evidence=evidence, comparison=comparison)
    if harm is not None:
        return VerdictFinding(kind="rollback", reason=harm, comparison=comparison)
    waits_for = _waits_for(version, comparison=comparison, settings=evidence.settings)
    return VerdictFinding(
        kind=comparison.verdict, reason=sentence(comparison), waits_for=waits_for, comparison=comparison
    )


def _harm(version: PolicyVersion, *, evidence: Evidence, comparison: Comparison) -> str | None:
    settings, failures, high = evidence.settings, evidence.failures.difference, comparison.reward.high
    if failures.low is not None and failures.low > settings.guardrails.failures:
        return "its answers fail or are too slow more often than the champion's, beyond rollout.guardrails.failures"
    if comparison.verdict == "worse" and high is not None and high < -settings.harm:
        return sentence(comparison)
    return evidence.fault if version.state == "canary" else None


def _waits_for(version: PolicyVersion, *, comparison: Comparison, settings: RolloutSettings) -> str:
    name = version.name
    if is_proven(comparison, margin=settings.margin):
        return f"a person: ragbandit policy promote {name}"
    if comparison.verdict == "better":
        return f"proof that it is better by more than rollout.margin ({number(settings.margin)})"
    if comparison.verdict == "worse":
        return f"proof that it is worse by more than rollout.harm ({number(settings.harm)})"
    return comparison.missing or f"a person: ragbandit policy promote {name} --force, or retire {name}"


def is_proven(comparison: Comparison, *, margin: float) -> bool:
    """Whether the first way is better by more than a margin."""
    return comparison.verdict == "better" and comparison.reward.low is not None and comparison.reward.low > margin


def facts_of(evidence: Evidence, *, comparison: Comparison) -> dict[str, Json]:
    """What is stored with a verdict."""
    points: list[Json] = [[rows, *(round(value, 6) for value in ends)] for rows, *ends in evidence.rewards.points]
    return {
        "comparison": asdict(comparison),
        "faults": evidence.faults,
        "failures": asdict(evidence.failures.difference),
        "margin": evidence.settings.margin,
        "points": points,
    }


def comparison_of(facts: Mapping[str, Json]) -> Comparison | None:
    """The comparison in a verdict's facts. None if it is damaged or missing."""
    with suppress(ValidationError):
        return _COMPARISON.validate_python(facts.get("comparison"))
    return None
