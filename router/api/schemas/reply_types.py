"""Reply types: one typed definition of every JSON reply.

FastAPI documents the endpoints from them, and mypy holds the builders in `responses` to them. HTTP, the client and
`--json` of the command line show the same shapes. Values of `ragbandit.router.types` stand in them as they are.
"""

from typing import Any, Literal

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from ragbandit.router.serving.health.circuit_breaker import CircuitState
from ragbandit.router.serving.state import LagPercentiles
from ragbandit.router.types import (
    Cost,
    Counters,
    DecisionState,
    FeedbackKind,
    FeedbackSource,
    JudgedBy,
    OutcomeStatus,
    Receipt,
    RewardSource,
    RunBy,
)

__all__ = [
    "AnswerReply",
    "ArmReply",
    "BatchReply",
    "CancellationReply",
    "DecisionFields",
    "ErrorDetail",
    "ErrorReply",
    "HealthReply",
    "JudgeDay",
    "JudgeReply",
    "KeptFeedback",
    "KeptOutcome",
    "KeptReward",
    "LedgerReply",
    "OutcomeFields",
    "OutcomeReply",
    "PendingReply",
    "ReadyReply",
    "RecordReply",
    "RouteBatchReply",
    "RouteReply",
    "StatusReply",
]


class ErrorDetail(TypedDict):
    """`code` is stable; `field` names the input and `remedy` says what to change."""

    code: str
    message: str
    field: str | None
    remedy: str | None


class ErrorReply(TypedDict):
    """Every error has this shape."""

    error: ErrorDetail


class DecisionFields(TypedDict):
    """Fields of a decision. pmf: probability of every offered arm; policy: name (label) of the ledger."""

    decision_id: str
    arm: str
    propensity: float
    pmf: dict[str, float]
    scores: dict[str, float] | None
    policy: str
    version: str
    explored: bool
    fault: str | None


class RouteReply(DecisionFields):
    """A decision; route_ms: from request to committed decision."""

    route_ms: float


class RouteBatchReply(TypedDict):
    """One entry per item, in order."""

    items: list["RouteReply | ErrorReply"]


class OutcomeFields(TypedDict):
    """Fields of an outcome; status "failed" has an `error`, "exhausted" ran out of its budget."""

    status: OutcomeStatus
    answer: str | None
    stop_reason: str
    error: str | None
    steps: float
    cost: Cost


class AnswerReply(RouteReply, OutcomeFields):
    """A decision and its outcome."""


class PendingReply(RouteReply):
    """A decision without an outcome yet: ask /v1/decisions/{id}, or send the same request again."""

    status: Literal["pending"]
    answer: None


class OutcomeReply(TypedDict):
    """duplicate: this very outcome was stored before."""

    decision_id: str
    duplicate: bool


class CancellationReply(TypedDict):
    """cancelled: whether the decision ended by being cancelled; null while its status is "pending"."""

    decision_id: str
    cancelled: bool | None
    status: OutcomeStatus | Literal["pending"]


class BatchReply(TypedDict):
    """One entry per item, in order."""

    items: list[Receipt | ErrorReply]


class KeptOutcome(OutcomeFields):
    """The outcome of a decision: its steps in order, who ran the arm, and with what."""

    trace: list[dict[str, Any]]
    run_by: RunBy
    made_by: dict[str, Any]
    made_at: float


class KeptFeedback(TypedDict):
    """One judgement. late: it came after the decision was closed, and was not learned."""

    id: str
    decision_id: str
    kind: FeedbackKind
    value: float | tuple[str, ...] | None
    source: FeedbackSource
    rater: str | None
    event: str | None
    facts: dict[str, Any]
    received_at: float
    late: bool


class KeptReward(TypedDict):
    """value = quality - weight * cost, clipped to [minimum, maximum]; terms: price per unit of every cost term."""

    value: float | None
    quality: float | None
    cost: float | None
    weight: float
    minimum: float
    maximum: float
    terms: dict[str, float]
    preset: str
    source: RewardSource
    judged_by: JudgedBy | None
    raw_quality: float | None
    sample_weight: float
    clipped: bool


class RecordReply(DecisionFields):
    """All that is stored about a decision. A number that is not finite (in a damaged row) is null."""

    question: str
    context: dict[str, Any]
    tenant: str
    budget: dict[str, float]
    seed: str
    floor: float
    encoder_hash: str
    run_by: RunBy
    facts: dict[str, Any]
    made_at: float
    state: DecisionState
    reason: str | None
    outcome: KeptOutcome | None
    feedback: list[KeptFeedback]
    reward: KeptReward | None
    learned_seq: int | None


class HealthReply(TypedDict):
    """The process is alive."""

    status: Literal["ok"]


class ReadyReply(TypedDict):
    """parts: for each part "ok", or what is wrong with it."""

    status: Literal["ok", "not ready"]
    parts: dict[str, str]


class ArmReply(TypedDict):
    """Circuit of an arm. "closed": healthy. "open": suspended after `failures` failures in a row, the first at `since`.
    "half_open": one question may try it. offered: whether the next question may be offered the arm.
    """

    state: CircuitState
    offered: bool
    failures: int
    since: float | None


class JudgeDay(TypedDict):
    """What the judge did in the present day (UTC), over all processes of the store."""

    begun: int
    scored: int
    failed: int
    given_up: int
    expired: int
    suspicious: int
    skipped: int
    prompt_tokens: int
    completion_tokens: int
    dollars: float


class JudgeReply(TypedDict):
    """State of the judge, see docs/judge.md."""

    waiting: int
    today: JudgeDay


class LedgerReply(TypedDict):
    """State of a ledger."""

    policy: str
    counters: Counters
    balanced: bool
    last_seq: int
    snapshot: str | None
    snapshot_last_seq: int
    behind: int
    lag_s: float
    unanswered: int
    missing_outcome: int
    judge: JudgeReply
    rebuilding: bool
    arms: dict[str, ArmReply]


class StatusReply(LedgerReply):
    """State of the ledger and of this router."""

    serving: str
    algorithm: str
    faults: int
    forced: int
    feedback_to_policy_ms: LagPercentiles
