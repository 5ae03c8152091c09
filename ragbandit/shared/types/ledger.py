"""What the learner writes: rewards, updates, snapshots and the counts of a ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

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
from ragbandit.shared.types.queries import Query

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
    #: the quality before calibration, where it was calibrated
    raw_quality: float | None = None
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
    #: arms that changed before its decision was made, and that a policy begins anew before it learns this row
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
    #: feedback that is not learned until it is released
    held: int = 0

    @property
    def balanced(self) -> bool:
        """Every decision is in exactly one place."""
        return self.decided == self.placed + self.unseen

    @property
    def placed(self) -> int:
        """Decisions that have a place in the ledger."""
        return self.learned + self.defaulted + self.waiting + self.closed + self.quarantined
