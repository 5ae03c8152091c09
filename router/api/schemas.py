"""What replies look like, for /openapi.json alone: replies.py makes them, and a test holds the two together."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.dataclasses import dataclass

from ragbandit.router.learning.status import Status
from ragbandit.router.serving.circuit_breaker import CircuitState
from ragbandit.router.types import Cost, Feedback, OutcomeStatus, Receipt, RunBy

__all__ = ["REPLIES"]


class ErrorDetail(BaseModel):
    """`code` is stable; `field` and `remedy` say what to change."""

    code: str
    message: str
    field: str | None
    remedy: str | None


class ErrorReply(BaseModel):
    """Every error has this shape."""

    error: ErrorDetail


class _Decided(BaseModel):
    decision_id: str
    arm: str
    propensity: float
    pmf: dict[str, float]
    scores: dict[str, float] | None
    policy: str
    version: str
    explored: bool
    fault: str | None


class RouteReply(_Decided):
    """A decision; route_ms: from request to committed decision."""

    route_ms: float


class _Ended(BaseModel):
    status: OutcomeStatus
    answer: str | None
    stop_reason: str
    error: str | None
    steps: float
    cost: Cost


class AnswerReply(RouteReply, _Ended):
    """A decision and its outcome."""


class PendingReply(RouteReply):
    """A decision whose outcome is not there yet: ask /v1/decisions/{id}, or the same again."""

    status: Literal["pending"]
    answer: None


class OutcomeReply(BaseModel):
    """duplicate: this very outcome was kept before."""

    decision_id: str
    duplicate: bool


class CancellationReply(BaseModel):
    """cancelled: whether it ended by being cancelled; null while its status is "pending"."""

    decision_id: str
    cancelled: bool | None
    status: OutcomeStatus | Literal["pending"]


class BatchReply(BaseModel):
    """One entry per item, in order."""

    items: list[Receipt | ErrorReply]


class KeptOutcome(_Ended):
    """What became of a decision, with how and by what."""

    trace: list[dict[str, Any]]
    run_by: RunBy
    made_by: dict[str, Any]
    made_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFeedback(Feedback):
    """A judgement; late: it came after the decision was closed."""

    late: bool


class KeptReward(BaseModel):
    """value = quality - weight * cost, clipped."""

    value: float
    quality: float
    cost: float
    weight: float
    minimum: float
    maximum: float
    terms: dict[str, float]
    preset: str
    source: Literal["explicit", "default"]
    clipped: bool


class RecordReply(_Decided):
    """Everything known of a decision. A number that is not finite is shown as text."""

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
    state: Literal["learned", "defaulted", "waiting", "closed", "quarantined"]
    reason: str | None
    outcome: KeptOutcome | None
    feedback: list[KeptFeedback]
    reward: KeptReward | None
    learned_seq: int | None


class HealthReply(BaseModel):
    """The process is alive."""

    status: Literal["ok"]


class ReadyReply(BaseModel):
    """parts: of each "ok", or what is wrong with it."""

    status: Literal["ok", "not ready"]
    parts: dict[str, str]


class ArmReply(BaseModel):
    """How an arm is: failures in a row, and since when."""

    state: CircuitState
    offered: bool
    failures: int
    since: float | None


class LagReply(BaseModel):
    """Milliseconds from feedback to this router's policy."""

    p50: float | None
    p99: float | None
    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusReply(Status):
    """Counters, lag, snapshot, arms."""

    balanced: bool
    serving: str
    algorithm: str
    policy: str
    faults: int
    forced: int
    arms: dict[str, ArmReply]
    feedback_to_policy_ms: LagReply


def _described(what: str, model: Any) -> dict[str, Any]:
    return {"description": what, "model": model}


#: path -> status -> the reply, as FastAPI takes it
REPLIES: Mapping[str, dict[int | str, dict[str, Any]]] = {
    "/v1/route": {200: _described("The arm to run", RouteReply)},
    "/v1/answer": {
        200: _described("The outcome", AnswerReply),
        202: _described("The outcome is not there yet", PendingReply),
    },
    "/v1/outcomes": {
        200: _described("The same was kept before", OutcomeReply),
        202: _described("Kept", OutcomeReply),
    },
    "/v1/decisions/{decision_id}": {200: _described("What is known", RecordReply)},
    "/v1/decisions/{decision_id}/cancel": {
        200: _described("It has its outcome: how it ended", CancellationReply),
        202: _described("A worker has still to end it", CancellationReply),
    },
    "/v1/feedback": {200: _described("The same was kept before", Receipt), 202: _described("Kept", Receipt)},
    "/v1/feedback/batch": {202: _described("A receipt or an error for each", BatchReply)},
    "/health": {200: _described("Alive", HealthReply)},
    "/ready": {200: _described("Ready", ReadyReply), 503: _described("Not ready", ReadyReply)},
    "/v1/status": {200: _described("Where everything stands", StatusReply)},
    "/metrics": {200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}},
}
#: of any path
ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": ErrorReply} for code in (400, 404, 409, 413, 422, 503)}
