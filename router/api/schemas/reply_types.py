"""Reply types: one typed definition of every JSON reply.

FastAPI documents the endpoints from them, mypy holds the builders in `responses` to them, and the client's methods
return them. HTTP, the client and `--json` of the command line show the same shapes. Importing them is light.
"""

from typing import (
    Any,
    Literal,
    NotRequired,  # pydantic reads no other before Python 3.12
)

from typing_extensions import TypedDict

from ragbandit.router.types import (
    CircuitState,
    DecisionState,
    FeedbackKind,
    FeedbackSource,
    JudgedBy,
    OutcomeStatus,
    RewardSource,
    RunBy,
)

__all__ = [
    "AnswerReply",
    "ArmReply",
    "BatchReply",
    "CancellationReply",
    "CostReply",
    "CountersReply",
    "DecisionFields",
    "ErrorDetail",
    "ErrorReply",
    "HealthReply",
    "JudgeDay",
    "JudgeReply",
    "KeptFeedback",
    "KeptOutcome",
    "KeptReward",
    "LagReply",
    "LedgerReply",
    "OutcomeFields",
    "OutcomeReply",
    "PendingReply",
    "ReadyReply",
    "ReceiptReply",
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


# Every endpoint names it ten times: pydantic reads it when somebody asks for the OpenAPI document, not at each start.
ErrorReply.__pydantic_config__ = {"defer_build": True}  # type: ignore[attr-defined] # pydantic's own name


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
    question: NotRequired[str]
    trace_id: NotRequired[str]


class RouteBatchReply(TypedDict):
    """One entry per item, in order."""

    items: list["RouteReply | ErrorReply"]


class CostReply(TypedDict):
    """Resources that one answer used: the fields of `ragbandit.Cost`."""

    retriever_calls: int
    passages: int
    llm_calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds_retrieve: float
    seconds_generate: float
    seconds_total: float
    dollars: float


class SourceReply(TypedDict):
    """A passage that the model was shown: the fields of `ragbandit.router.types.Source`."""

    id: str
    title: str
    text: str
    url: str | None
    score: float | None


class OutcomeFields(TypedDict):
    """Fields of an outcome; status "failed" has an `error`, "exhausted" ran out of its budget.

    sources: the passages that the model was shown, in the order first shown; of our workers' answers alone.
    """

    status: OutcomeStatus
    answer: str | None
    stop_reason: str
    error: str | None
    steps: float
    cost: CostReply
    sources: list[SourceReply]


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


class ReceiptReply(TypedDict):
    """Confirmation that a feedback is stored: the fields of `ragbandit.Receipt`."""

    feedback_id: str
    duplicate: bool
    late: bool
    waiting_for: Literal["outcome"] | None


class FeedbackTokenReply(TypedDict):
    """What lets a browser judge a decision."""

    token: str
    expires_at: int


class BatchReply(TypedDict):
    """One entry per item, in order."""

    items: list[ReceiptReply | ErrorReply]


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


class MessageReply(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class TurnReply(TypedDict):
    """One decision of a conversation."""

    decision_id: str
    arm: str
    propensity: float
    question: str
    asked: str | None
    forced: bool
    sticky: dict[str, Any] | None
    status: OutcomeStatus | None
    made_at: float


class SessionReply(TypedDict):
    """The newest decisions of a conversation, the oldest of them first."""

    session_id: str
    tenant: str
    decisions: list[TurnReply]
    more: bool


class RecordReply(DecisionFields):
    """All that is stored about a decision. A number that is not finite (in a damaged row) is null."""

    question: str
    asked: str | None
    session_id: str | None
    messages: list[MessageReply]
    context: dict[str, Any]
    tenant: str
    budget: dict[str, float]
    seed: str
    floor: float
    encoder_hash: str
    run_by: RunBy
    forced: bool
    request: dict[str, Any]
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


class CountersReply(TypedDict):
    """Counts of decisions by state, and of feedback: the fields of `ragbandit.Counters`."""

    decided: int
    learned: int
    defaulted: int
    waiting: int
    closed: int
    quarantined: int
    feedback: int
    late_feedback: int
    unseen: int
    disagreements: int
    held: int


class LagReply(TypedDict):
    """Milliseconds from feedback to a router's policy, over the last thousand feedbacks; null where there are none."""

    p50: float | None
    p99: float | None
    n: int


class LedgerReply(TypedDict):
    """State of a ledger."""

    policy: str
    counters: CountersReply
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
    feedback_to_policy_ms: LagReply
    redis: str
