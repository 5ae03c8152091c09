"""Rules that turn the evidence on a version into a verdict. Pure: equal evidence gives an equal verdict."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts.evidence import Draws, RewardEvidence, note_rows
from ragbandit.router.rollouts.guardrails import GUARDRAILS, GuardrailEvidence, GuardrailName
from ragbandit.router.rollouts.verbs import Verb, next_weight
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.confidence_sequences import Tried
from ragbandit.shared.formats import duration
from ragbandit.shared.types import Json, PolicyControl, PolicyVersion, VerdictKind

#: if a version returns to shadow because its time ran out, its reason begins with this text; then only a person can put
#: the version into canary again
EXPIRED: Final = "its time ran out"
#: a version is faulty if it gave no usable pmf for at least this share of decisions, and for at least _LEAST_FAULTS
_FAULTS: Final = 0.05
_LEAST_FAULTS: Final = 20
#: standard errors that a difference must reach, in the forecast of how many more rows a promotion needs
_PROOF: Final = 3.4
_WORDS: Final[Mapping[GuardrailName, str]] = {
    "failures": "its answers fail more often than the champion's",
    "latency": "its slowest answers take longer than the champion's",
    "cost": "its answers cost more than the champion's",
}


@dataclass(kw_only=True, slots=True)
class DrawEvidence:
    rows: int = 0
    faults: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    _agreement: float = 0.0
    _ratio_sum: float = 0.0

    def add(self, draws: Draws) -> None:
        self._ratio_sum += float(draws.ratio.sum())
        self._agreement += float(np.minimum(draws.candidate, draws.champion).sum())
        self.rows += len(draws)
        note_rows(self.digest, draws.ids, draws.drawn(draws.pmf))

    @property
    def agreement(self) -> float:
        """Mean overlap of the candidate's and the champion's pmf, 0 to 1: each arm's smaller probability, summed."""
        return self._agreement / self.rows if self.rows else 0.0

    @property
    def mean_ratio(self) -> float:
        """Mean importance weight of the candidate; its expectation is 1."""
        return self._ratio_sum / self.rows if self.rows else 1.0


@dataclass(kw_only=True, slots=True)
class Evidence:
    settings: RolloutSettings
    #: message that arms are not drawn with the logged probabilities (`ragbandit_sample_ratio_uneven`); None if they are
    alarm: str | None = None
    draws: DrawEvidence = field(default_factory=DrawEvidence)
    rewards: RewardEvidence = field(init=False)
    guardrails: GuardrailEvidence = field(init=False)

    def __post_init__(self) -> None:
        self.rewards = RewardEvidence(settings=self.settings)
        self.guardrails = GuardrailEvidence(settings=self.settings)

    @property
    def effective(self) -> float:
        """Effective rows of the candidate, among rewards or among outcomes, whichever is smaller."""
        return min(self.rewards.effective, self.guardrails.effective)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictFinding:
    kind: VerdictKind
    reason: str
    waits_for: str = ""
    verb: Verb | None = None
    inputs_sha256: str


def decide(
    version: PolicyVersion,
    *,
    evidence: Evidence,
    control: PolicyControl,
    now: float,
    canary: str | None = None,
    complete: bool = True,
) -> VerdictFinding:
    """The verdict on a version. canary: name of another version in canary. complete: True if all rows were read."""
    age = max(0.0, now - version.since)
    times = (age >= evidence.settings.seconds_per_step, age >= evidence.settings.max_age_s)
    rules = _VerdictRules(version, evidence=evidence, control=control, age=age, canary=canary, complete=complete)
    kind, reason, waits_for, verb = next(rules.verdicts())
    further = map(str, (control.killed or "", times, canary or "", complete, evidence.alarm or ""))
    inputs = [version.name, version.revision, evidence.settings.model_dump(mode="json"), list(further)]
    inputs += [part.digest.hexdigest() for part in (evidence.draws, evidence.rewards, evidence.guardrails)]
    digest = hashlib.sha256(canonical([*inputs, evidence.draws.faults]).encode()).hexdigest()
    return VerdictFinding(kind=kind, reason=reason, waits_for=waits_for, verb=verb, inputs_sha256=digest)


#: (kind, reason, what the version waits for, action)
_Verdict = tuple[VerdictKind, str, str, Verb | None]


@dataclass(frozen=True)
class _VerdictRules:
    """The rules. Rules against harm come first, then missing evidence, then progress."""

    version: PolicyVersion
    evidence: Evidence
    control: PolicyControl
    age: float
    canary: str | None
    complete: bool

    @property
    def settings(self) -> RolloutSettings:
        return self.evidence.settings

    def verdicts(self) -> Iterator[_Verdict]:
        """Yield the verdicts of all rules that apply. The first one counts; the last rule always applies."""
        for rule in (self._harm, self._held, self._missing, self._guarded):
            yield from rule()
        weight = next_weight(self.version, settings=self.settings)
        yield self._last() if weight is None else self._step(weight)

    def _held(self) -> Iterator[_Verdict]:
        if self.control.killed is not None:
            yield _hold("the kill switch is on, so the version is not served", "ragbandit policy resume")
        if self.version.state == "canary" and self.age >= self.settings.max_age_s:
            days = f"{self.settings.max_age_s / 86400:.3g} days"
            yield "expire", f"{EXPIRED}: neither better nor worse for sure in {days}", "", "shadow"
        if self.version.reason.startswith(EXPIRED):
            yield _hold(self.version.reason, f"a person: ragbandit policy canary {self.version.name}")
        if not self.complete:
            yield _hold("its ledger is being read", "the end of the ledger, in a few evaluations")

    def _harm(self) -> Iterator[_Verdict]:
        rewards, guardrails = self.evidence.rewards, self.evidence.guardrails
        out: Verb | None = "rollback"
        if self.evidence.alarm is not None:
            reason = f"the log contradicts its propensities, so it is no evidence: {self.evidence.alarm}"
            yield "invalid", reason, "a person: ragbandit verify", out
        if guardrails.sudden_at is not None:
            yield "rollback", f"at least half of its newest {self.settings.failure_window} answers failed", "", out
        for name, guardrail in guardrails.guardrails.items():
            if guardrail.passed.proven_at is not None:
                yield "rollback", f"{_WORDS[name]}, beyond the margin", "", out
        if rewards.worse_at is not None:
            detail = f"{rewards.difference:+.3f}, conclusive after {rewards.worse_at} rated decisions"
            yield "rollback", f"its reward is worse than the champion's ({detail})", "", out
        if self.version.state == "canary" and self._is_faulty:
            yield "expire", f"{EXPIRED}: {self._faults}", "", "shadow"

    @property
    def _is_faulty(self) -> bool:
        draws = self.evidence.draws
        return draws.faults >= max(_FAULTS * (draws.rows + draws.faults), _LEAST_FAULTS)

    @property
    def _faults(self) -> str:
        draws = self.evidence.draws
        return f"it gave no pmf for {draws.faults} of {draws.rows + draws.faults} decisions"

    def _missing(self) -> Iterator[_Verdict]:
        rewards, guardrails = self.evidence.rewards, self.evidence.guardrails
        if self._is_faulty:
            yield _hold(self._faults, f"fewer faults, for the reason see: ragbandit policy show {self.version.name}")
        needed, effective = self.settings.rows_per_step, self.evidence.effective
        if rewards.rows == 0 or guardrails.rows == 0:
            lacking = "been judged" if guardrails.rows else "an outcome"
            yield _hold(f"no decision since then has {lacking}", f"{needed} effective rows, of which there are 0")
        if effective < needed:
            # Equal counts may differ by rounding, which depends on the pages; the tolerance makes the choice stable.
            fewer = rewards if rewards.effective <= guardrails.effective * (1.0 + 1e-9) else guardrails
            missing = math.ceil((needed - effective) * fewer.rows / max(effective, 1.0))
            rows = "judged decisions" if fewer is rewards else "outcomes"
            waits_for = f"about {missing:,} more {rows}; {effective:.0f} of {needed} effective rows are there"
            yield _hold("too few effective rows", waits_for)
        remaining_s = self.settings.seconds_per_step - self.age
        if remaining_s > 0.0:
            yield _hold("too little time in this state", f"{duration(remaining_s)} more")

    def _guarded(self) -> Iterator[_Verdict]:
        for name, guardrail in self.evidence.guardrails.guardrails.items():
            if self.settings.guardrails.proven and guardrail.kept.proven_at is None:
                yield _hold(f"it is not proven that the guardrail of {name} is kept", f"more outcomes ({name})")
            if guardrail.rows and guardrail.excess > guardrail.margin:
                waits_for = f"outcomes that bring the estimate within the margin, or prove that it is beyond ({name})"
                yield _hold(f"by the estimate, {_WORDS[name]}", waits_for)

    def _step(self, weight: float) -> _Verdict:
        rewards = self.evidence.rewards
        error = rewards.deviation / math.sqrt(rewards.rows)
        if rewards.tried.enough and rewards.difference + error < -self.settings.harm:
            waits_for = "judged decisions that bring the estimate up, or prove that it is worse"
            return _hold(f"its reward looks worse: {rewards.difference:+.3f} +- {error:.3f}", waits_for)
        if self.canary is not None:
            return _hold(f"{self.canary} is in canary, and there is one at a time", f"the end of {self.canary}")
        if self.version.state != "canary" and not self.settings.enter_canary:
            waits_for = f"a person: ragbandit policy canary {self.version.name}"
            return _hold("the evidence allows it to be a canary", waits_for)
        return "step", f"guardrails are kept, its reward does not look worse: on to {weight:.0%}", "", "step"

    def _last(self) -> _Verdict:
        rewards, margin = self.evidence.rewards, self.settings.margin
        if rewards.better is not None and rewards.better.proven_at is not None:
            reason = f"its reward is better: {rewards.difference:+.3f}, {rewards.low:+.3f} at least"
            return "promote", reason, "", "promote"
        gap = rewards.difference - margin
        waits_for = "it may not be better: no number of decisions proves it at the present estimate"
        if gap > 0.0:
            needed = math.ceil((_PROOF * rewards.deviation / gap) ** 2) - rewards.rows
            waits_for = f"about {max(needed, self.settings.rows_per_step):,} more judged decisions, if it stays so"
        so_far = f"not better for sure: {rewards.difference:+.3f}, {rewards.low:+.3f} at least (margin {margin:g})"
        return _hold(rewards.tried.missing or so_far, waits_for)


def _hold(reason: str, waits_for: str) -> _Verdict:
    return "hold", reason, waits_for, None


def facts_of(version: PolicyVersion, *, evidence: Evidence) -> dict[str, Json]:
    rewards, draws = evidence.rewards, evidence.draws
    tried = replace(rewards.tried, draws=draws.rows, questions=draws.rows)
    points: list[Json] = [[rows, *(round(number, 6) for number in numbers)] for rows, *numbers in rewards.points]
    return {
        "decisions": draws.rows,
        "faults": draws.faults,
        "n": rewards.rows,
        "n_eff": round(evidence.effective, 1),
        "share_open": round(1.0 - min(1.0, rewards.rows / draws.rows), 4) if draws.rows else 0.0,
        "agreement": round(draws.agreement, 4),
        "mean_weight": round(draws.mean_ratio, 4),
        **_shown(tried, difference=rewards.difference, low=rewards.low, high=rewards.high),
        "deviation": rewards.deviation if math.isfinite(rewards.deviation) else None,
        "margin": evidence.settings.margin,
        "better_at": None if rewards.better is None else rewards.better.proven_at,
        "worse_at": rewards.worse_at,
        "guardrails": {name: _guardrail_facts(evidence.guardrails, name=name) for name in GUARDRAILS},
        "points": points,
        "since": version.since,
    }


def _shown(tried: Tried, **numbers: float) -> dict[str, Json]:
    """An estimate and its interval. With too little data they are None, and `missing` has the reason."""
    shown: dict[str, Json] = {name: value if tried.enough else None for name, value in numbers.items()}
    return shown | {"missing": tried.missing}


def _guardrail_facts(evidence: GuardrailEvidence, *, name: GuardrailName) -> Json:
    guardrail = evidence.guardrails.get(name)
    if guardrail is None or not guardrail.rows:
        return {"state": "unknown", "n": 0}
    low, high = guardrail.bounds
    state = "passed" if guardrail.passed.proven_at is not None else "unclear"
    units: dict[GuardrailName, dict[str, Json]] = {
        "latency": {"slow_s": evidence.slow_s},
        "cost": {"unit": evidence.cost_unit},
    }
    return {
        "state": state if guardrail.kept.proven_at is None else "kept",
        "n": guardrail.rows,
        **_shown(guardrail.tried, excess=guardrail.excess, low=low, high=high),
        "margin": guardrail.margin,
        "factor": guardrail.factor,
        **units.get(name, {}),
    }
