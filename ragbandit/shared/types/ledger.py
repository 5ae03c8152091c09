"""What the learner writes: rewards, updates, snapshots and the counts of a ledger."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal

from ragbandit.shared.types.names import (
    ArmName,
    DecisionId,
    Features,
    FeedbackId,
    Json,
    JudgedBy,
    PolicyLabel,
    RewardSource,
)
from ragbandit.shared.types.outcomes import Query

#: presets of rewards that came whole: no weight of cost can be put on them afterwards
WHOLE: Final = ("reward", "default")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """value = clip(quality - lambda * cost); quality and cost are kept so that lambda can change later."""

    value: float
    quality: float
    cost: float
    #: the weight of cost
    weight: float
    #: the bounds of the value
    minimum: float
    maximum: float
    #: price per unit of every cost term
    terms: Mapping[str, float]
    #: name of the quality measure, "rating", "mixed", or "reward" where the caller gave the reward itself
    preset: str
    source: RewardSource
    #: the most trusted feedback in it; None: a default reward
    judged_by: JudgedBy | None = None
    #: quality by less trusted sources of scores that judged the same answer: judge, event
    surrogates: Mapping[str, float] = field(default_factory=dict)
    #: how many rows this one counts as when a policy learns it (>= 0)
    sample_weight: float = 1.0

    @property
    def has_parts(self) -> bool:
        """Whether quality and cost are known apart; else the quality has the cost inside already, if there is one."""
        return self.preset not in WHOLE

    def at(self, weight: float) -> "Reward":
        """The reward at another weight of cost; one that came whole stays as it is."""
        if not self.has_parts:
            return self
        value = min(max(self.quality - weight * self.cost, self.minimum), self.maximum)
        return replace(self, value=value, weight=weight)

    @property
    def clipped(self) -> bool:
        """Whether the bounds changed the value."""
        return self.value != self.quality - self.weight * self.cost


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One row of the ledger: what a policy learns from one decision."""

    policy: PolicyLabel
    #: gapless per policy, from 1
    seq: int
    decision_id: DecisionId
    arm: ArmName
    #: the question and its context, as the policy saw them
    query: Query
    #: the arms that were offered, with their probabilities and the policy's values, in one order
    arms: tuple[ArmName, ...]
    pmf: tuple[float, ...]
    scores: tuple[float, ...] | None
    propensity: float
    reward: Reward
    feedback_ids: tuple[FeedbackId, ...]
    #: its embedding by the decision's encoder
    features: Features | None = field(repr=False)  # hundreds of numbers that nobody reads
    made_at: float
    #: its decision was made elsewhere: what it cost was not paid here
    imported: bool = False
    #: decisions made here, this one among them, when this row was appended; None: only the rows are known
    decided: int | None = None
    #: arms that changed before its decision was made, and that a policy restarts before it learns this row
    restarts: tuple[ArmName, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """One question of a full-information routing table: quality and steps of every arm."""

    id: str
    question: str
    #: quality of every arm's answer, in [0, 1]
    correct: Mapping[ArmName, float]
    #: what every arm spent, in the papers' Steps (>= 0)
    steps: Mapping[ArmName, float]
    #: pieces of evidence that the question needs (1: single-hop, 2 and more: multi-hop), where somebody knows
    hops: int | None = None
    #: what a caller would send with the question
    context: Mapping[str, Json] = field(default_factory=dict)
    #: where the question comes from, and seconds of every arm's answer, where somebody knows: for reports, no policy
    #: sees them
    dataset: str | None = None
    seconds: Mapping[ArmName, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotInfo:
    """Description of a snapshot: the policy's parameters after update `last_seq`."""

    #: "<label>-<last_seq>-<first 12 of sha256>"
    version: str
    policy: PolicyLabel
    #: registry name of the algorithm
    algorithm: str
    params: Mapping[str, Json]
    last_seq: int
    #: of the safetensors bytes
    sha256: str
    encoder_hash: str
    made_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counts of decisions by state, and of feedback, for one ledger. `balanced` is promise 7 of the design."""

    decided: int
    learned: int
    defaulted: int
    waiting: int
    closed: int
    quarantined: int
    #: feedback rows kept
    feedback: int
    #: of these, the ones that came after their decision was closed
    late_feedback: int
    #: decisions from before the label that have no place in its ledger yet, or of a retired label none any more
    unseen: int = 0
    #: learned decisions whose raters lay .5 or more apart in quality
    disagreements: int = 0

    @property
    def balanced(self) -> bool:
        """Every decision is in exactly one place."""
        return self.decided == self.placed + self.unseen

    @property
    def placed(self) -> int:
        """Decisions that have a place in the ledger."""
        return self.learned + self.defaulted + self.waiting + self.closed + self.quarantined


#: draft: known, nothing computed. shadow: its pmf is logged beside the champion's, nothing of it is served. canary: the
#: served pmf is (1 - weight) * champion's + weight * its own. champion: it decides. paused: as draft, until it is
#: resumed. rolled_back: the evidence, or a person, took it out. retired: a former champion, or a draft given up
VersionState = Literal["draft", "shadow", "canary", "champion", "paused", "rolled_back", "retired"]
#: states in which a candidate gives pmfs
LIVE_STATES: Final = frozenset({"shadow", "canary"})
#: hold: not enough is known. step: to the next state or weight. promote: better beyond the margin. rollback: worse, or
#: a guardrail was passed. invalid: the log contradicts its propensities, so that nothing can be said. expire: it took
#: longer than allowed without a decision
VerdictKind = Literal["hold", "step", "promote", "rollback", "invalid", "expire"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVersion:
    """A version of the policy: the settings that it changes, and its state."""

    name: str
    """Name of the version, unique in the store: "v1", "v2" ..., or what the operator chose."""
    base: PolicyLabel
    """`policy.label` of the configuration that it is a version of."""
    label: PolicyLabel
    """Label of its own ledger; of the configuration itself that is `base`."""
    state: VersionState
    """State of its rollout."""
    weight: float
    """Share of its pmf in what is served, in [0, 1]: 0 except in canary, 1 of the champion."""
    former: VersionState | None
    """The state that a paused version comes back to; of a former champion `champion`; else null."""
    changes: Mapping[str, Json] = field(default_factory=dict)
    """Settings that differ from the configuration, by its sections: {"policy": {...}, "reward": {...}}."""
    revision: int
    """Changes of this version so far; who changes it names the revision that was seen."""
    reason: str
    """Why it is in its state."""
    waits_for: str = ""
    """Why it does not move on, and what is missing; empty where nothing is, or it is not being rolled out."""
    made_by: str
    """Who added it."""
    made_at: float
    """When it was added, seconds since 1970."""
    since: float
    """When its state or share changed last, seconds since 1970: evidence counts from here on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVerdict:
    """The verdict of one look at the evidence. Stored whenever it differs from the one before."""

    number: int
    """1, 2, 3 ..."""
    version: str
    """Name of the version."""
    state: VersionState
    """The state that the version was in."""
    weight: float
    """The share that it had."""
    kind: VerdictKind
    """What is to be done."""
    reason: str
    """Why."""
    inputs_sha256: str
    """Over the rows and settings that it follows from, hex digits: the same inputs give the same verdict."""
    facts: Mapping[str, Json]
    """The numbers: n, effective rows, difference with its bounds, guardrails."""
    made_at: float
    """When, seconds since 1970."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyControl:
    """The kill switch, and a revision that tells every router before each batch whether versions changed."""

    revision: int
    """Changes of versions and of the switch so far."""
    killed: Literal["arm", "champion"] | None = None
    """`arm`: one arm is played for every question; `champion`: no candidate is served; null: not killed."""
    arm: ArmName | None = None
    """The arm that every question gets; null unless one is pinned."""
    actor: str = ""
    """Who made the last change."""
    reason: str = ""
    """Why the switch was thrown, or taken back."""
    made_at: float = 0.0
    """When, seconds since 1970."""


#: upper edges of the latency histogram, seconds; what is slower is in one bucket more. Never changed: rows have it.
LATENCY_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)

#: rows of which the arms are counted: decisions under ids that callers named, all, those with an outcome, those that
#: were judged
SampleStage = Literal["named", "drawn", "ended", "judged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmTotals:
    """Totals of one arm under one policy. Two can be added.

    Decisions are counted in the hour in which they were made, outcomes in the hour in which they ended, and what was
    learned in the hour of its decision.
    """

    #: decisions with this arm; imported ones are not traffic, and are in no count
    decided: int = 0
    #: of these: another arm was at least as likely
    explored: int = 0
    #: of these: a turn that stayed on the arm of an earlier one
    sticky: int = 0
    #: of these: the caller chose the arm
    forced: int = 0
    #: of these: drawn while the kill switch was thrown
    killed: int = 0
    #: of these: the policy's own probabilities could not be used
    faults: int = 0
    #: outcomes with an answer, of a spent budget too
    answered: int = 0
    #: outcomes without one
    failed: int = 0
    #: of no count above: callers ended them
    cancelled: int = 0
    dollars: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: float = 0.0
    #: wall clock of the outcomes in `latency`, seconds
    seconds: float = 0.0
    #: outcomes that say how long they took and were not cancelled, by LATENCY_EDGES
    latency: tuple[int, ...] = field(default=(0,) * (len(LATENCY_EDGES) + 1))
    #: the least and the largest of these, seconds; None while there are none
    fastest: float | None = None
    slowest: float | None = None
    #: updates made of feedback, and of the default reward
    learned: int = 0
    defaulted: int = 0
    #: over both
    reward: float = 0.0
    quality: float = 0.0
    cost: float = 0.0

    #: draws of the arm beyond the number that the probabilities promise, and the variance of that number: over
    #: decisions under ids that callers named, all, those with an outcome, those that were judged
    named_excess: float = 0.0
    named_spread: float = 0.0
    drawn_excess: float = 0.0
    drawn_spread: float = 0.0
    ended_excess: float = 0.0
    ended_spread: float = 0.0
    judged_excess: float = 0.0
    judged_spread: float = 0.0

    def __add__(self, other: "ArmTotals") -> "ArmTotals":
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name not in _TIMES}
        ranges = [one.latency_range for one in (self, other) if one.latency_range is not None]
        return ArmTotals(
            **sums,
            latency=tuple(a + b for a, b in zip(self.latency, other.latency, strict=True)),
            fastest=min((fastest for fastest, _ in ranges), default=None),
            slowest=max((slowest for _, slowest in ranges), default=None),
        )

    @property
    def rewarded(self) -> int:
        """Updates."""
        return self.learned + self.defaulted

    @property
    def ended(self) -> int:
        """Outcomes that callers did not end."""
        return self.answered + self.failed

    @property
    def latency_range(self) -> tuple[float, float] | None:
        """The least and the largest latency, seconds; None while there is none."""
        return None if self.fastest is None or self.slowest is None else (self.fastest, self.slowest)

    def latency_at(self, share: float) -> float | None:
        """The latency that this share (0 to 1) of the outcomes did not exceed, seconds; None while there are none.

        Within its bucket it is taken to rise evenly, between the least and the largest that were observed.
        """
        observed = self.latency_range
        if observed is None:
            return None
        least, largest = observed
        wanted, below, lower = share * sum(self.latency), 0, 0.0
        for count, edge in zip(self.latency, (*LATENCY_EDGES, largest), strict=True):
            if count and below + count >= wanted:
                low, high = max(lower, least), min(edge, largest)
                return min(high, low + (high - low) * max(0.0, wanted - below) / count)
            below, lower = below + count, edge
        return largest


_TIMES: Final = ("latency", "fastest", "slowest")


def sum_of(parts: Iterable[ArmTotals]) -> ArmTotals:
    """The sum of any number of totals."""
    return sum(parts, ArmTotals())


def effective_rows(total: float, *, squares: float) -> float:
    """(sum w)^2 / sum w^2 (Kish); 0 without any weight. total: sum of the weights; squares: sum of their squares."""
    return total**2 / squares if squares > 0.0 else 0.0


def surely_effective_rows(total: float, *, squares: float, rows: float, expected_squares: float) -> float:
    """Effective rows of those drawn or as expected, whichever are fewer.

    rows: rows of the log; expected_squares: sum over them of the expectation of w^2 by the probabilities alone. Where a
    heavy weight is possible and none was drawn yet, the drawn ones alone look like many rows.
    """
    return min(effective_rows(total, squares=squares), effective_rows(rows, squares=expected_squares))
