"""Replies about feedback: receipts, and the judgements and rewards in a decision's record."""

from typing import Any, Literal

from typing_extensions import TypedDict

from ragbandit.client.replies.errors import ErrorReply
from ragbandit.shared.types import FeedbackKind, FeedbackSource, JudgedBy, RewardSource


class ReceiptReply(TypedDict):
    """Confirmation that a feedback is stored: the fields of `ragbandit.Receipt`."""

    feedback_id: str
    """Id of the feedback; yours if you sent one."""
    duplicate: bool
    """Whether the same feedback was stored before."""
    late: bool
    """Whether it came after the decision was closed; it is then stored, and not learned."""
    waiting_for: Literal["outcome"] | None
    """What has to be reported before the feedback can be learned; null if nothing."""


class ClientFeedbackReply(ReceiptReply, total=False):
    """Receipt of a feedback, as a client gives it."""

    degraded: bool
    """Its decision was made without the service: nothing was sent."""


class BatchReply(TypedDict):
    """One entry per item, in order."""

    items: list[ReceiptReply | ErrorReply]
    """A receipt or an error for each item, in order."""


class KeptFeedback(TypedDict):
    """One judgement of a decision."""

    id: str
    """Id of the feedback."""
    decision_id: str
    """Id of the decision."""
    kind: FeedbackKind
    """Kind of feedback."""
    value: float | tuple[str, ...] | None
    """The gold answers, the rating on [0, 1], or the reward; null for what takes a judgement back, and for an event
    that is only counted."""
    source: FeedbackSource
    """Who judged."""
    rater: str | None
    """Which person or model of that source judged; null where it is unknown."""
    event: str | None
    """Name of the event; null for other feedback."""
    facts: dict[str, Any]
    """What else the rater reported, for example a judge's model, rubric and reasons."""
    received_at: float
    """When it was stored, seconds since 1970."""
    late: bool
    """Whether it came after the decision was closed; it is then not learned."""


class KeptReward(TypedDict):
    """The reward that was learned: value = quality - weight * cost, clipped to [minimum, maximum]."""

    value: float | None
    """The reward."""
    quality: float | None
    """Quality on [0, 1]; of a raw reward the reward itself."""
    cost: float | None
    """The priced sum of the cost terms."""
    weight: float
    """Weight of cost (lambda)."""
    minimum: float
    """Least reward; below it is clipped."""
    maximum: float
    """Largest reward; above it is clipped."""
    terms: dict[str, float]
    """Price per unit of each cost term."""
    preset: str
    """How the judgements became quality: a quality measure, `rating`, `mixed`, or `reward` for a raw reward."""
    source: RewardSource
    """Whether it was made of feedback, or is the default reward."""
    judged_by: JudgedBy | None
    """The most trusted feedback in it: label, human, judge or event; null for a default reward."""
    raw_quality: float | None
    """Quality before calibration; null where it was not calibrated."""
    sample_weight: float
    """How many rows it counts as when the policy learns it."""
    clipped: bool
    """Whether the reward was outside its bounds."""
