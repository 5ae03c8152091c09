"""What people and models say of an answer, and the decision that it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ragbandit.shared.types.names import ArmName, DecisionId, FeedbackId, FeedbackKind, FeedbackSource, Json
from ragbandit.shared.types.outcomes import Outcome
from ragbandit.shared.types.queries import Decision


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """One judgement of one decision.

    id: the caller's own, or one that was made: makes it idempotent
    decision_id: of the decision that is judged
    kind: "label", "rating", "reward" or "event"
    value: of a label the tuple of gold answers; of a rating a float in [0, 1], whatever scale it came in; of a reward a
        float used as it is, in the bounds of the reward setting; of an event what the configuration says that it is
        worth, a float in [0, 1], or None: counted, and not learned. None of another kind than event takes back what the
        same rater said before, of that kind
    source: who judged: "human", "judge", "code" or "event"
    received_at: seconds since 1970
    rater: which one of them: a user's id, a model's name; None: not told
    event: the name of the event
    facts: what else the rater said: a judge's model, rubric, reasons, cost; JSON values
    api_key: public id of the API key that it came with; None: none was needed, or it came from our own processes
    """

    id: FeedbackId
    decision_id: DecisionId
    kind: FeedbackKind
    value: float | tuple[str, ...] | None
    source: FeedbackSource
    received_at: float
    rater: str | None = None
    event: str | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)
    api_key: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """Confirmation that a feedback is stored."""

    feedback_id: FeedbackId
    #: the same body came before under this id
    duplicate: bool
    #: the decision was already closed: kept and counted, not learned
    late: bool
    #: "outcome": nothing is learned before the caller reports the decision's outcome; None: nothing is missing
    waiting_for: Literal["outcome"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedDecision:
    """A waiting decision with its outcome and feedback."""

    decision: Decision
    outcome: Outcome | None
    #: in the order received
    feedback: tuple[Feedback, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedDecision:
    """A decision that will not be learned: "closed" (nothing to learn) or "quarantined" (a value cannot be used)."""

    decision_id: str
    state: Literal["closed", "quarantined"]
    reason: str
    #: the field that cannot be used, where it is known
    field: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationPair:
    """A decision that a model has scored and a person has judged: what scores are calibrated by."""

    #: 1, 2, 3 ... within its ledger
    number: int
    decision_id: DecisionId
    arm: ArmName
    #: the model's, and what people made of it
    score: float
    quality: float
    #: updates with a larger seq are calibrated with it
    after_seq: int
