"""Responses: replies built from values of the router, as the types in `reply_types` say; `plain` makes JSON of them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Final, cast

from starlette.responses import JSONResponse, Response

from ragbandit.router.api.schemas.policies import ControlReply, PoliciesReply, PolicyReply, VersionReply
from ragbandit.router.api.schemas.reply_types import (
    AnswerReply,
    BatchReply,
    CancellationReply,
    CostReply,
    CountersReply,
    DecisionFields,
    ErrorReply,
    FeedbackTokenReply,
    HealthReply,
    JudgeDay,
    KeptFeedback,
    KeptOutcome,
    KeptReward,
    LagReply,
    LedgerReply,
    OutcomeFields,
    OutcomeReply,
    PendingReply,
    ReadyReply,
    ReceiptReply,
    RecordReply,
    RouteBatchReply,
    RouteReply,
    SessionReply,
    SourceReply,
    StatusReply,
    TurnReply,
)
from ragbandit.router.errors import Overloaded, RagBanditError
from ragbandit.router.learning.status import Status
from ragbandit.router.serving.cancellation import Cancellation
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.state import LagPercentiles, RouterState
from ragbandit.router.storage.decisions import DecisionRecord
from ragbandit.router.storage.rows.outcome_rows import trace_json
from ragbandit.router.storage.sessions import TurnRecord
from ragbandit.router.telemetry.carriers import trace_id_of
from ragbandit.router.types import (
    STICKY,
    Cost,
    Counters,
    Decision,
    Feedback,
    Outcome,
    Receipt,
    Reward,
    Source,
    finite_json,
)

__all__ = [
    "ERRORS",
    "REPLIES",
    "JsonReply",
    "cancellation_json",
    "decision_json",
    "error_body",
    "error_json",
    "gone",
    "headers",
    "ledger_json",
    "outcome_json",
    "plain",
    "receipt_json",
    "record_json",
    "refusal",
    "session_json",
    "status_json",
]


#: status of a request whose caller closed the connection before the reply, as nginx counts it
CLIENT_CLOSED: Final = 499

# Made once: `json.dumps` would make one for every reply.
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class JsonReply(JSONResponse):
    """A reply as JSON: values of our types as objects, numbers that are not finite as null."""

    def render(self, content: Any) -> bytes:
        """The body."""
        try:
            return _JSON.encode(content).encode()
        except (TypeError, ValueError):  # a value of ours, or a number that is not finite
            return _JSON.encode(plain(content)).encode()


def plain(reply: Any) -> Any:
    """The reply as dicts, lists and scalars that JSON can hold."""
    return finite_json(_without_dataclasses(reply))


def _without_dataclasses(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _without_dataclasses(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _without_dataclasses(item) for key, item in value.items()}
    return [_without_dataclasses(item) for item in value] if isinstance(value, list | tuple) else value


def _fields(value: Cost | Counters | LagPercentiles | Receipt | Source) -> dict[str, Any]:
    """The fields of a value that holds scalars alone; their type in `reply_types` has the same names."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def status_json(state: RouterState) -> StatusReply:
    """State of a router and of its ledger."""
    return {
        **ledger_json(state.ledger, label=state.label, arms=state.arms, rebuilding=state.rebuilding),
        "serving": state.serving,
        "algorithm": state.algorithm,
        "faults": state.faults,
        "forced": state.fail_opens,
        "feedback_to_policy_ms": cast(LagReply, _fields(state.feedback_to_policy_ms)),
        "redis": state.redis,
    }


def ledger_json(status: Status, *, label: str, arms: Sequence[ArmHealth], rebuilding: bool) -> LedgerReply:
    """State of a ledger. rebuilding: the policy is being learned again from it."""
    return {
        "policy": label,
        "counters": cast(CountersReply, _fields(status.counters)),
        "balanced": status.counters.balanced,
        "last_seq": status.last_seq,
        "snapshot": status.snapshot,
        "snapshot_last_seq": status.snapshot_last_seq,
        "behind": status.behind,
        "lag_s": status.lag_s,
        "unanswered": status.unanswered,
        "missing_outcome": status.missing_outcome,
        "judge": {"waiting": status.judge.waiting, "today": cast(JudgeDay, dict(status.judge.today))},
        "rebuilding": rebuilding,
        "arms": {
            arm.arm: {"state": arm.state, "offered": arm.offered, "failures": arm.failures, "since": arm.since}
            for arm in arms
        },
    }


def headers(decision: Decision) -> dict[str, str]:
    """The decision's main facts as HTTP headers, for callers that do not read the body."""
    trace = trace_id_of(decision.query.request)
    return {
        "x-ragbandit-decision-id": decision.id,
        "x-ragbandit-strategy": decision.arm,
        "x-ragbandit-policy-version": decision.version,
        "x-ragbandit-propensity": repr(decision.propensity),
        "x-ragbandit-explored": str(decision.explored).lower(),
        **({} if trace is None else {"x-ragbandit-trace-id": trace}),
    }


def decision_json(decision: Decision) -> DecisionFields:
    """A decision without what its query was."""
    return {
        "decision_id": decision.id,
        "arm": decision.arm,
        "propensity": decision.propensity,
        "pmf": dict(zip(decision.arms, decision.pmf, strict=True)),
        "scores": None if decision.scores is None else dict(zip(decision.arms, decision.scores, strict=True)),
        "policy": decision.policy,
        "version": decision.version,
        "explored": decision.explored,
        "fault": decision.fault,
    }


def route_json(decision: Decision, *, seconds: float) -> RouteReply:
    """A decision that was just made. seconds: from request to committed decision."""
    made = cast(RouteReply, {"route_ms": round(seconds * 1000, 3), **decision_json(decision)})
    if decision.query.asked is not None:
        made["question"] = decision.query.text
    if (trace := trace_id_of(decision.query.request)) is not None:
        made["trace_id"] = trace
    return made


def answer_json(decision: Decision, outcome: Outcome, *, seconds: float) -> AnswerReply:
    """A decision that was just made, and its outcome."""
    return {**route_json(decision, seconds=seconds), **outcome_json(outcome)}


def pending_json(decision: Decision, *, seconds: float) -> PendingReply:
    """A decision that was just made, and has no outcome yet."""
    return {**route_json(decision, seconds=seconds), "status": "pending", "answer": None}


def outcome_json(outcome: Outcome) -> OutcomeFields:
    """An outcome without its trace."""
    return {
        "status": outcome.status,
        "answer": outcome.answer,
        "stop_reason": outcome.stop_reason,
        "error": outcome.error,
        "steps": outcome.steps,
        "cost": cast(CostReply, _fields(outcome.cost)),
        "sources": [cast(SourceReply, _fields(source)) for source in outcome.sources],
    }


def record_json(record: DecisionRecord) -> RecordReply:
    """All that is stored about a decision."""
    decision = record.decision
    return {
        **decision_json(decision),
        "question": decision.query.text,
        "asked": decision.query.asked,
        "session_id": decision.query.session,
        "messages": [{"role": message.role, "content": message.text} for message in decision.query.messages],
        "context": dict(decision.query.context),
        "tenant": decision.query.tenant,
        "budget": {cap: value for cap, value in asdict(decision.query.budget).items() if value is not None},
        "seed": str(decision.seed),
        "floor": decision.floor,
        "encoder_hash": decision.encoder_hash,
        "run_by": decision.run_by,
        "forced": decision.query.forced,
        "request": dict(decision.query.request),
        "facts": dict(decision.facts),
        "made_at": decision.made_at,
        "state": record.state,
        "reason": record.reason,
        "outcome": None if record.outcome is None else _kept_outcome(record.outcome),
        "feedback": [_kept_feedback(item, late=item.id in record.late) for item in record.feedback],
        "reward": None if record.reward is None else _kept_reward(record.reward),
        "learned_seq": record.learned_seq,
    }


def session_json(turns: Sequence[TurnRecord], *, session: str, tenant: str, limit: int) -> SessionReply:
    """The last `limit` of these turns."""
    return {
        "session_id": session,
        "tenant": tenant,
        "decisions": [_turn(turn) for turn in turns[-limit:]],
        "more": len(turns) > limit,
    }


def _turn(turn: TurnRecord) -> TurnReply:
    decision, sticky = turn.decision, turn.decision.facts.get(STICKY)
    return {
        "decision_id": decision.id,
        "arm": decision.arm,
        "propensity": decision.propensity,
        "question": decision.query.text,
        "asked": decision.query.asked,
        "forced": decision.query.forced,
        "sticky": dict(sticky) if isinstance(sticky, Mapping) else None,
        "status": turn.status,
        "made_at": decision.made_at,
    }


def _kept_outcome(outcome: Outcome) -> KeptOutcome:
    return {
        **outcome_json(outcome),
        "trace": trace_json(outcome.trace),
        "run_by": outcome.run_by,
        "made_by": dict(outcome.made_by),
        "made_at": outcome.made_at,
    }


def _kept_feedback(item: Feedback, *, late: bool) -> KeptFeedback:
    return {
        "id": item.id,
        "decision_id": item.decision_id,
        "kind": item.kind,
        "value": item.value,
        "source": item.source,
        "rater": item.rater,
        "event": item.event,
        "facts": dict(item.facts),
        "received_at": item.received_at,
        "late": late,
    }


def _kept_reward(reward: Reward) -> KeptReward:
    return {
        "value": reward.value,
        "quality": reward.quality,
        "cost": reward.cost,
        "weight": reward.weight,
        "minimum": reward.minimum,
        "maximum": reward.maximum,
        "terms": dict(reward.terms),
        "preset": reward.preset,
        "source": reward.source,
        "judged_by": reward.judged_by,
        "raw_quality": reward.raw_quality,
        "sample_weight": reward.sample_weight,
        "clipped": reward.clipped,
    }


def receipt_json(receipt: Receipt) -> ReceiptReply:
    """Confirmation of a feedback."""
    return cast(ReceiptReply, _fields(receipt))


def cancellation_json(cancellation: Cancellation) -> CancellationReply:
    """State of a cancelled decision."""
    return {
        "decision_id": cancellation.decision_id,
        "cancelled": cancellation.cancelled,
        "status": cancellation.status or "pending",
    }


def refusal(error: RagBanditError) -> JsonReply:
    """The reply to a request that ended with an error of ours; what may be sent again says when."""
    after_s = error.retry_after_s if isinstance(error, Overloaded) else 1.0 if error.status == 503 else None
    headers = None if after_s is None else {"Retry-After": str(math.ceil(after_s))}
    if error.status == 409:
        headers = {"x-should-retry": "false"}  # some clients try a conflict again by themselves, and it stays one
    if error.status == 401:
        headers = {"WWW-Authenticate": 'Bearer realm="ragbandit"'}
    return JsonReply(error_json(error), status_code=error.status, headers=headers)


def gone() -> Response:
    """The reply to a caller that has closed its connection: counted, and read by nobody."""
    return Response(status_code=CLIENT_CLOSED)


def error_json(error: RagBanditError) -> ErrorReply:
    """An error of ours."""
    return error_body(error.code, error.message, field=error.field, remedy=error.remedy)


def error_body(code: str, message: str, *, field: str | None = None, remedy: str | None = None) -> ErrorReply:
    """The shape of every error: stable code, message, field, remedy."""
    # A message may quote what was sent, and that may not be valid Unicode.
    safe = json.loads(json.dumps(message).encode("utf-8", "replace"))
    return {"error": {"code": code, "message": safe, "field": field, "remedy": remedy}}


def _described(text: str, model: Any) -> dict[str, Any]:
    return {"description": text, "model": model}


#: path -> status -> the reply, as FastAPI takes it
REPLIES: Mapping[str, dict[int | str, dict[str, Any]]] = {
    "/v1/route": {200: _described("The arm to run.", RouteReply)},
    "/v1/route/batch": {200: _described("A decision or an error for each item.", RouteBatchReply)},
    "/v1/answer": {
        200: _described("The outcome; with `stream` events.", AnswerReply)
        | {"content": {"text/event-stream": {"schema": {"description": "server-sent events"}}}},
        202: _described("The outcome is not there yet.", PendingReply),
    },
    "/v1/outcomes": {
        200: _described("This very outcome was stored before.", OutcomeReply),
        202: _described("Stored.", OutcomeReply),
    },
    "/v1/decisions/{decision_id}": {200: _described("All that is stored about the decision.", RecordReply)},
    "/v1/decisions/{decision_id}/cancel": {
        200: _described("The decision has an outcome: how it ended.", CancellationReply),
        202: _described("A worker has still to end it.", CancellationReply),
    },
    "/v1/feedback": {
        200: _described("This very feedback was stored before.", ReceiptReply),
        202: _described("Stored.", ReceiptReply),
    },
    "/v1/feedback/token": {200: _described("The token.", FeedbackTokenReply)},
    "/v1/sessions/{session_id:path}": {200: _described("Its newest decisions.", SessionReply)},
    "/v1/feedback/batch": {202: _described("A receipt or an error for each item.", BatchReply)},
    "/v1/policies": {200: _described("The versions, and the kill switch.", PoliciesReply)},
    "/v1/policies/{name}": {200: _described("The version with its verdicts.", PolicyReply)},
    "/v1/policies/{name}/{verb}": {200: _described("The version as it is now.", VersionReply)},
    "/v1/policies/kill": {200: _described("The switch as it is now.", ControlReply)},
    "/v1/policies/unkill": {200: _described("The switch as it is now.", ControlReply)},
    "/health": {200: _described("The process is alive.", HealthReply)},
    "/ready": {200: _described("Ready.", ReadyReply), 503: _described("Not ready.", ReadyReply)},
    "/v1/status": {200: _described("State of the ledger and of this router.", StatusReply)},
    "/metrics": {200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
}
#: of any path
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorReply} for code in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
