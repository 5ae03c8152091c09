"""Rewards, updates, snapshots, policy versions, and totals of a ledger."""

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

#: presets of rewards without a separate quality and cost
WHOLE: Final = ("reward", "default")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """`value` is quality - weight * cost, clipped to [minimum, maximum]."""

    value: float
    quality: float
    cost: float
    #: cost weight (lambda)
    weight: float
    minimum: float
    maximum: float
    #: cost term -> price per unit
    terms: Mapping[str, float]
    #: name of the quality measure, "rating", "mixed", or "reward" if the caller sent the reward itself
    preset: str
    source: RewardSource
    #: most trusted class of feedback from which the reward was computed; None for a default reward
    judged_by: JudgedBy | None = None
    #: less trusted class of feedback (judge, event) -> quality that it gave to the same answer
    surrogates: Mapping[str, float] = field(default_factory=dict)
    #: number of rows that the reward counts as when a policy learns it (>= 0)
    sample_weight: float = 1.0

    @property
    def has_parts(self) -> bool:
        """Whether quality and cost are separate. Otherwise `quality` includes the cost."""
        return self.preset not in WHOLE

    def at(self, weight: float) -> "Reward":
        """The reward at another cost weight. A reward without separate parts does not change."""
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
    """One row of the ledger: the training example of one decision."""

    policy: PolicyLabel
    #: number of the row: 1, 2, 3, ... without gaps, per policy
    seq: int
    decision_id: DecisionId
    arm: ArmName
    query: Query
    #: offered arms; pmf and scores have the same order
    arms: tuple[ArmName, ...]
    pmf: tuple[float, ...]
    scores: tuple[float, ...] | None
    propensity: float
    reward: Reward
    feedback_ids: tuple[FeedbackId, ...]
    features: Features | None = field(repr=False)  # hundreds of numbers, too long to print
    made_at: float
    #: whether the decision was imported: its cost was not paid by this service
    imported: bool = False
    #: number of decisions of this service when the row was appended, without those whose `arm_by` is in NOT_BY_POLICY;
    #: None for such a decision, or if unknown
    decided: int | None = None
    #: whether a spent budget released the draw from the safe start
    released: bool = False
    #: arms that changed before the decision; the policy unlearns them before it learns this row
    restarts: tuple[ArmName, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """One question of a full-information routing table: quality and cost of every arm."""

    id: str
    question: str
    #: quality of the answers, in [0, 1]
    correct: Mapping[ArmName, float]
    #: cost of the answers in the papers' Steps (>= 0); empty if the table has only other costs
    steps: Mapping[ArmName, float]
    #: number of facts that the question needs (1: single-hop, 2 or more: multi-hop); None if unknown
    hops: int | None = None
    #: context of the question, as a caller would send it
    context: Mapping[str, Json] = field(default_factory=dict)
    #: name of the data set, for reports; policies do not see it
    dataset: str | None = None
    #: duration of the answers if known, for reports; policies do not see it
    seconds: Mapping[ArmName, float] = field(default_factory=dict)
    #: other costs of the answers: field of Cost -> arm -> amount; "cost" if the unit is that of the reward
    costs: Mapping[str, Mapping[ArmName, float]] = field(default_factory=dict)
    #: other measures of the answers, in [0, 1]: "exact_match", "f1", "accuracy", "str_em" or "str_hit" -> arm -> value
    measures: Mapping[str, Mapping[ArmName, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotInfo:
    """Description of a snapshot: the state of a policy after update `last_seq`."""

    #: name of the snapshot: "<label>-<last_seq>-<first 12 hex digits of sha256>"
    version: str
    policy: PolicyLabel
    algorithm: str
    params: Mapping[str, Json]
    last_seq: int
    #: hash of the tensors and facts, hex digits
    sha256: str
    encoder_hash: str
    made_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Number of decisions in each state, and of feedback, for one ledger."""

    decided: int
    learned: int
    defaulted: int
    waiting: int
    closed: int
    quarantined: int
    feedback: int
    #: feedback that came after its decision was closed
    late_feedback: int
    #: decisions without a state in this ledger, because they were made before it began or while it was retired
    unseen: int = 0

    @property
    def balanced(self) -> bool:
        """Whether every decision has exactly one state."""
        return self.decided == self.placed + self.unseen

    @property
    def placed(self) -> int:
        """Number of decisions with a state in this ledger."""
        return self.learned + self.defaulted + self.waiting + self.closed + self.quarantined


#: state of a policy version. draft: its pmf is not computed. shadow: its pmf is computed and logged, but not served.
#: champion: its pmf is served. retired: a former champion, or an abandoned version
VersionState = Literal["draft", "shadow", "champion", "retired"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVersion:
    """A version of the policy: its changed settings and its rollout state."""

    name: str
    """Name of the version, unique in the store: "v1", "v2", ..., or a name that the operator chose."""
    base: PolicyLabel
    """`policy.label` of the configuration that the version changes."""
    label: PolicyLabel
    """Label of the version's ledger; equal to `base` if the version is the configuration itself."""
    state: VersionState
    """State of the version's rollout."""
    former: VersionState | None
    """`champion` for a former champion that a rollback restores; otherwise null."""
    changes: Mapping[str, Json] = field(default_factory=dict)
    """Settings that differ from the configuration, by section: {"policy": {...}, "reward": {...}}."""
    revision: int
    """Number of changes of this version so far; a change names the revision that it is based on."""
    reason: str
    """Why the version is in this state."""
    made_by: str
    """Who added the version."""
    made_at: float
    """When the version was added, seconds since 1970."""
    since: float
    """When the version's state last changed, seconds since 1970; only evidence after this time counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyControl:
    """The kill switch, and the revision by which routers notice changed versions before each batch."""

    revision: int
    """Number of changes of versions and of the switch so far."""
    killed: Literal["arm", "champion"] | None = None
    """`arm`: every question gets one pinned arm. `champion`: no version in shadow is asked. null: the switch is off."""
    arm: ArmName | None = None
    """The pinned arm; null unless `killed` is `arm`."""
    actor: str = ""
    """Who made the last change."""
    reason: str = ""
    """Why the switch was turned on or off."""
    made_at: float = 0.0
    """Time of the last change, seconds since 1970."""


#: upper edges of the latency histogram, seconds; one more bucket counts slower outcomes. Stored totals use these edges
LATENCY_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)

#: sets of decisions in which the shares of the arms are compared with their propensities. named: with an id chosen by
#: the caller. drawn: all decisions. ended: with an outcome. judged: with a judgement
SampleStage = Literal["named", "drawn", "ended", "judged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmTotals:
    """Totals of one arm under one policy, by hour or added up.

    Decisions and updates count in the hour of the decision, outcomes in the hour in which they ended.
    """

    #: decisions with this arm, without imported ones
    decided: int = 0
    #: decisions for which another arm was at least as likely
    explored: int = 0
    #: turns of earlier decisions with this arm; `decided` does not include them
    turns: int = 0
    #: decisions whose arm the caller chose
    forced: int = 0
    #: decisions made while the kill switch was on
    killed: int = 0
    #: further decisions that the policy did not make: `arm_by` is in NOT_BY_POLICY, or a budget was spent
    undrawn: int = 0
    #: decisions for which the policy's own pmf could not be used
    faults: int = 0
    #: outcomes with an answer, or with a spent budget
    answered: int = 0
    failed: int = 0
    #: outcomes that callers cancelled; they are neither answered nor failed
    cancelled: int = 0
    dollars: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: float = 0.0
    seconds: float = 0.0
    #: number of outcomes in each bucket of LATENCY_EDGES, without cancelled outcomes
    latency: tuple[int, ...] = field(default=(0,) * (len(LATENCY_EDGES) + 1))
    #: smallest latency, seconds
    fastest: float | None = None
    #: largest latency, seconds
    slowest: float | None = None
    #: updates from feedback
    learned: int = 0
    #: updates with the default reward
    defaulted: int = 0
    reward: float = 0.0
    quality: float = 0.0
    cost: float = 0.0

    #: for each SampleStage, ..._excess is the number of draws of the arm minus the expected number of draws, and
    #: ..._spread is the variance of this difference
    named_excess: float = 0.0
    named_spread: float = 0.0
    drawn_excess: float = 0.0
    drawn_spread: float = 0.0
    ended_excess: float = 0.0
    ended_spread: float = 0.0
    judged_excess: float = 0.0
    judged_spread: float = 0.0

    def __add__(self, other: "ArmTotals") -> "ArmTotals":
        others = ("latency", "fastest", "slowest")
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name not in others}
        ranges = [totals.latency_range for totals in (self, other) if totals.latency_range is not None]
        return ArmTotals(
            **sums,
            latency=tuple(a + b for a, b in zip(self.latency, other.latency, strict=True)),
            fastest=min((fastest for fastest, _ in ranges), default=None),
            slowest=max((slowest for _, slowest in ranges), default=None),
        )

    @property
    def rewarded(self) -> int:
        """Number of updates."""
        return self.learned + self.defaulted

    @property
    def ended(self) -> int:
        """Number of outcomes, without cancelled outcomes."""
        return self.answered + self.failed

    @property
    def latency_range(self) -> tuple[float, float] | None:
        """(smallest, largest) latency, seconds; None without a latency."""
        return None if self.fastest is None or self.slowest is None else (self.fastest, self.slowest)

    def latency_at(self, share: float) -> float | None:
        """Quantile of the latency, interpolated within a bucket, seconds; None without a latency. share: 0 to 1."""
        if self.latency_range is None:
            return None
        smallest, largest = self.latency_range
        rank = share * sum(self.latency)
        below = 0
        lower = 0.0
        for count, edge in zip(self.latency, (*LATENCY_EDGES, largest), strict=True):
            if count and below + count >= rank:
                low = max(lower, smallest)
                high = min(edge, largest)
                return min(high, low + (high - low) * max(0.0, rank - below) / count)
            below += count
            lower = edge
        return largest


def sum_totals(parts: Iterable[ArmTotals]) -> ArmTotals:
    """The sum of totals."""
    return sum(parts, ArmTotals())


def effective_rows(total: float, *, squares: float) -> float:
    """Kish's effective sample size (sum w)^2 / sum w^2 of weights w; 0 without any. total: sum w; squares: sum w^2."""
    return total**2 / squares if squares > 0.0 else 0.0


def surely_effective_rows(total: float, *, squares: float, rows: float, expected_squares: float) -> float:
    """The smaller of the observed and the expected effective sample size of `rows` rows.

    Let w be the weights. The observed size (`total`: sum w, `squares`: sum w^2) is too large until rare large weights
    are drawn.

    expected_squares: sum over the rows of the expectation of w^2 under the logged probabilities
    """
    return min(effective_rows(total, squares=squares), effective_rows(rows, squares=expected_squares))
