"""Rules that turn the evidence on a version into a verdict. Pure: equal evidence gives an equal verdict."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from ragbandit.router.comparison import MARGIN, Comparison, compare, forecast
from ragbandit.router.comparison.words import between, sentence
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts.evidence import RewardEvidence
from ragbandit.router.rollouts.guardrails import GUARDRAILS, GuardrailEvidence, GuardrailName
from ragbandit.router.rollouts.verbs import Verb, next_weight
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.formats import duration, number
from ragbandit.shared.types import Json, PolicyControl, PolicyVersion, VerdictKind

#: if a version returns to shadow because its time ran out, its reason begins with this text; then only a person can put
#: the version into canary again
EXPIRED: Final = "its time ran out"
#: a version is faulty if it gave no usable pmf for at least this share of decisions, and for at least _LEAST_FAULTS
_FAULTS: Final = 0.05
_LEAST_FAULTS: Final = 20
_WORDS: Final[Mapping[GuardrailName, str]] = {
    "failures": "its answers fail more often than the champion's",
    "latency": "its slowest answers take longer than the champion's",
    "cost": "its answers cost more than the champion's",
}


@dataclass(kw_only=True, slots=True)
class Evidence:
    settings: RolloutSettings
    champion: str = "the champion"
    #: message that arms are not drawn with the logged probabilities (`ragbandit_sample_ratio_uneven`); None if they are
    alarm: str | None = None
    faults: int = 0  #: answered questions for which the version gave no pmf
    rewards: RewardEvidence = field(init=False)
    guardrails: GuardrailEvidence = field(init=False)

    def __post_init__(self) -> None:
        self.rewards = RewardEvidence(settings=self.settings)
        self.guardrails = GuardrailEvidence(settings=self.settings)

    @property
    def questions(self) -> int:
        """Answered questions for which the version gave a pmf."""
        return self.guardrails.rows

    @property
    def is_faulty(self) -> bool:
        return self.faults >= max(_FAULTS * (self.questions + self.faults), _LEAST_FAULTS)

    def comparison(self, version: PolicyVersion, *, now: float) -> Comparison:
        return compare(
            version.name,
            self.champion,
            design="live traffic",
            questions=max(self.questions, self.rewards.rows),
            rated=self.rewards.rows,
            reward=self.rewards.difference,
            cost=self.guardrails.cost,
            confidence=1.0 - self.settings.alpha - self.settings.rollback_alpha,
            seconds=max(now - version.since, 0.0),
            needed=FEWEST_EFFECTIVE,
            blocked=self.alarm,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictFinding:
    kind: VerdictKind
    reason: str
    waits_for: str = ""
    verb: Verb | None = None
    inputs_sha256: str
    comparison: Comparison = field(compare=False)  #: its numbers are rounded differently with other pages


def decide(
    version: PolicyVersion,
    *,
    evidence: Evidence,
    control: PolicyControl,
    now: float,
    canary: str | None = None,
    complete: bool = True,
) -> VerdictFinding:
    """What to do with a version. canary: name of another version in canary. complete: True if all rows were read."""
    age, settings = max(0.0, now - version.since), evidence.settings
    comparison = evidence.comparison(version, now=now)
    rules = _VerdictRules(
        version=version,
        evidence=evidence,
        comparison=comparison,
        killed=control.killed is not None,
        age=age,
        canary=canary,
        complete=complete,
    )
    kind, reason, waits_for, verb = next(rules.verdicts())
    times = (age >= settings.seconds_per_step, age >= settings.max_age_s)
    further = map(str, (control.killed or "", times, canary or "", complete, evidence.alarm or ""))
    inputs = [version.name, version.revision, settings.model_dump(mode="json"), list(further)]
    inputs += [part.digest.hexdigest() for part in (evidence.rewards, evidence.guardrails)]
    digest = hashlib.sha256(canonical([*inputs, evidence.faults]).encode()).hexdigest()
    return VerdictFinding(
        kind=kind, reason=reason, waits_for=waits_for, verb=verb, inputs_sha256=digest, comparison=comparison
    )


#: (kind, reason, what the version waits for, action)
_Verdict = tuple[VerdictKind, str, str, Verb | None]


@dataclass(frozen=True, kw_only=True)
class _VerdictRules:
    """What follows from the comparison and its guardrails: harm first, then what is missing, then progress."""

    version: PolicyVersion
    evidence: Evidence
    comparison: Comparison
    killed: bool
    age: float
    canary: str | None
    complete: bool

    @property
    def settings(self) -> RolloutSettings:
        return self.evidence.settings

    def verdicts(self) -> Iterator[_Verdict]:
        """Yield the verdicts of all rules that apply. The first one counts; the last rule always applies."""
        for rule in (self._harm, self._held, self._missing):
            yield from rule()
        weight = next_weight(self.version, settings=self.settings)
        yield self._last() if weight is None else self._step(weight)

    def _harm(self) -> Iterator[_Verdict]:
        alarm, guardrails = self.evidence.alarm, self.evidence.guardrails
        if alarm is not None:
            reason = f"the log contradicts its propensities, so it is no evidence: {alarm}"
            yield "invalid", reason, "a person: ragbandit verify", "rollback"
        harms = [
            f"{_WORDS[name]}, beyond the margin" for name, one in guardrails.guardrails.items() if one.state == "passed"
        ]
        high = self.comparison.reward.high
        if self.comparison.verdict == "worse" and high is not None and high < -self.settings.harm:
            harms.append(sentence(self.comparison))
        for reason in harms:
            yield "rollback", reason, "", "rollback"
        if self.version.state == "canary" and self.evidence.is_faulty:
            yield "expire", f"{EXPIRED}: {self._faults}", "", "shadow"

    def _held(self) -> Iterator[_Verdict]:
        if self.killed:
            yield _hold("the kill switch is on, so the version is not served", "ragbandit policy resume")
        if self.version.state == "canary" and self.age >= self.settings.max_age_s:
            days = f"{self.settings.max_age_s / 86400:.3g} days"
            yield "expire", f"{EXPIRED}: neither better nor worse for sure in {days}", "", "shadow"
        if self.version.reason.startswith(EXPIRED):
            yield _hold(self.version.reason, f"a person: ragbandit policy canary {self.version.name}")
        if not self.complete:
            yield _hold("its ledger is being read", "the end of the ledger, in a few evaluations")
        if self.evidence.is_faulty:
            yield _hold(self._faults, f"fewer faults, for the reason see: ragbandit policy show {self.version.name}")

    @property
    def _faults(self) -> str:
        faults = self.evidence.faults
        return f"it gave no pmf for {faults} of {self.evidence.questions + faults} decisions"

    def _missing(self) -> Iterator[_Verdict]:
        needed, guardrails = self.settings.rows_per_step, self.evidence.guardrails.guardrails
        for evidence, noun in ((self.evidence.rewards.live, "rated question"), (guardrails["failures"], "outcome")):
            effective = evidence.effective
            if effective < needed:
                more = f"{noun}s"
                if effective >= 1.0:
                    each, count = self.age / evidence.rows, (needed / effective - 1.0) * evidence.rows
                    more = forecast(count, seconds_each=each, noun=noun)
                yield _hold(f"too few effective {noun}s: {effective:.0f} of {needed}", more)
        remaining_s = self.settings.seconds_per_step - self.age
        if remaining_s > 0.0:
            yield _hold("too little time in this state", f"{duration(remaining_s)} more")
        for name, guardrail in guardrails.items():
            if self.settings.guardrails.proven and guardrail.state != "kept":
                yield _hold(f"it is not proven that the guardrail of {name} is kept", f"more outcomes ({name})")
            if (guardrail.excess.estimate or 0.0) > guardrail.margin:
                waits_for = f"outcomes that bring the estimate within the margin, or prove that it is beyond ({name})"
                yield _hold(f"by the estimate, {_WORDS[name]}", waits_for)

    def _step(self, weight: float) -> _Verdict:
        reward = self.comparison.reward
        if (reward.estimate or 0.0) < -max(self.settings.harm, MARGIN):
            return _hold(f"its reward looks worse ({between(reward)} a question)", self._more)
        if self.canary is not None:
            return _hold(f"{self.canary} is in canary, and there is one at a time", f"the end of {self.canary}")
        if self.version.state != "canary" and not self.settings.enter_canary:
            waits_for = f"a person: ragbandit policy canary {self.version.name}"
            return _hold("the evidence allows it to be a canary", waits_for)
        return "step", f"guardrails are kept, its reward does not look worse: on to {weight:.0%}", "", "step"

    def _last(self) -> _Verdict:
        low, margin = self.comparison.reward.low, self.settings.margin
        if self.comparison.verdict == "better" and low is not None and low > margin:
            return "promote", sentence(self.comparison), "", "promote"
        return _hold(sentence(self.comparison), self._more)

    @property
    def _more(self) -> str:
        """What is missing for a promotion or a rollback."""
        comparison, name = self.comparison, self.version.name
        if comparison.verdict == "better":
            return f"proof that it is better by more than rollout.margin ({number(self.settings.margin)})"
        return comparison.missing or f"a person: ragbandit policy promote {name} --force, or retire {name}"


def _hold(reason: str, waits_for: str) -> _Verdict:
    return "hold", reason, waits_for, None


def facts_of(version: PolicyVersion, *, evidence: Evidence, comparison: Comparison) -> dict[str, Json]:
    """What is stored with a verdict."""
    points: list[Json] = [[rows, *(round(value, 6) for value in ends)] for rows, *ends in evidence.rewards.points]
    return {
        "comparison": asdict(comparison),
        "decisions": evidence.questions,
        "faults": evidence.faults,
        "margin": evidence.settings.margin,
        "guardrails": {name: _guardrail_facts(evidence.guardrails, name=name) for name in GUARDRAILS},
        "points": points,
        "since": version.since,
    }


def _guardrail_facts(evidence: GuardrailEvidence, *, name: GuardrailName) -> dict[str, Json]:
    guardrail = evidence.guardrails.get(name)
    if guardrail is None or not guardrail.rows:
        return {"state": "unknown", "n": 0}
    excess = guardrail.excess
    facts: dict[str, Json] = {"state": guardrail.state, "n": guardrail.rows, "margin": guardrail.margin}
    facts |= {"factor": guardrail.factor, "excess": excess.estimate, "low": excess.low, "high": excess.high}
    units = {"latency": {"slow_s": evidence.slow_s}, "cost": {"unit": evidence.cost_unit}}
    return {**facts, **units.get(name, {})}
