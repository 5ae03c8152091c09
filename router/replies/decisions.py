"""Converts decisions and their records to replies."""

from collections.abc import Iterable
from typing import Any, cast

from ragbandit.client.replies import decisions as reply_types
from ragbandit.router.replies.values import build_reply
from ragbandit.router.serving.explanations.chances import preview_of
from ragbandit.router.serving.prices import price_name
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.rows.conversion import budget_caps
from ragbandit.router.storage.rows.outcome_rows import trace_json
from ragbandit.router.telemetry.tracing import trace_id_of
from ragbandit.shared.types import SENT_ID, Decision, FailedArm, Feedback, Outcome, Query, SpendLimit, request_json


def decision_json(decision: Decision) -> reply_types.DecisionFields:
    pmf = decision.probabilities
    scores = None if decision.scores is None else dict(zip(decision.arms, decision.scores, strict=True))
    price = price_name(decision.query)
    return build_reply(
        reply_types.DecisionFields, decision, decision_id=decision.id, pmf=pmf, scores=scores, price=price
    )


def route_json(decision: Decision, *, seconds: float) -> reply_types.RouteReply:
    """The reply of /v1/route. seconds: time of deciding and committing."""
    reply = cast(reply_types.RouteReply, {"route_ms": round(seconds * 1000, 3), **decision_json(decision)})
    if decision.query.asked is not None:
        reply["question"] = decision.query.text
    if decision.query.turn_limits:
        reply["limits"] = limits_json(decision.query.turn_limits)
    trace, failed = trace_id_of(decision.query.sent.traceparent), decision.query.continues.failed
    if trace is not None:
        reply["trace_id"] = trace
    if failed is not None:
        reply["failover"] = failover_json(failed)
    return reply


def failover_json(failed: FailedArm) -> dict[str, Any]:
    return {name: getattr(failed, name) for name in ("arm", "attempt", "first", "reason")}


def limits_json(limits: Iterable[SpendLimit]) -> list[reply_types.LimitReply]:
    """Limits of a session and a task, with the turns and dollars that were left before this turn."""
    return [
        cast(
            reply_types.LimitReply,
            {"of": one.kind, "unit": one.unit, "limit": one.most, "remaining": max(0.0, one.most - one.used)},
        )
        for one in limits
    ]


def preview_json(decision: Decision) -> reply_types.PreviewReply:
    """The reply to a preview, which decides and stores nothing. decision: from `Router.preview`"""
    reasons, chances = preview_of(decision)
    return {
        "arms": [{"arm": one.arm, "probability": one.probability, "score": one.score} for one in chances],
        "turn_of": decision.turn_of,
        "policy": decision.policy,
        "version": decision.version,
        "reasons": reasons,
    }


def answer_json(
    decision: Decision, outcome: Outcome, *, seconds: float, saved: float | None = None
) -> reply_types.AnswerReply:
    savings: reply_types.SavedFields = {} if saved is None else {"saved": saved}
    return {**route_json(decision, seconds=seconds), **build_reply(reply_types.OutcomeFields, outcome), **savings}


def pending_json(decision: Decision, *, seconds: float) -> reply_types.PendingReply:
    return {**route_json(decision, seconds=seconds), "status": "pending", "answer": None}


def record_json(record: DecisionRecord) -> reply_types.RecordReply:
    decision = record.decision
    fields: dict[str, Any] = {**decision_json(decision), **_query_fields(decision.query)}
    own = ("floor", "encoder_hash", "run_by", "arm_by", "made_at", "turn_of")
    fields |= {name: getattr(decision, name) for name in own}
    fields["forced"] = decision.query.arm_by is not None or decision.arm_by == "caller"
    feedback = [_feedback_json(item, late=item.id in record.late) for item in record.feedback]
    if record.outcome is not None:
        fields["outcome"] = build_reply(reply_types.KeptOutcome, record.outcome, trace=trace_json(record.outcome.trace))
    return build_reply(
        reply_types.RecordReply,
        record,
        **fields,
        seed=str(decision.seed),
        facts=dict(decision.facts),
        feedback=feedback,
    )


def _feedback_json(item: Feedback, *, late: bool) -> reply_types.KeptFeedback:
    """A stored feedback, with the id that the caller sent."""
    facts = {name: fact for name, fact in item.facts.items() if name != SENT_ID}
    return build_reply(reply_types.KeptFeedback, item, id=item.facts.get(SENT_ID, item.id), facts=facts, late=late)


def _query_fields(query: Query) -> dict[str, Any]:
    return {
        "question": query.text,
        "asked": query.asked,
        "session_id": query.session,
        "messages": [{"role": message.role, "content": message.text} for message in query.messages],
        "context": dict(query.context),
        "tenant": query.tenant,
        "budget": budget_caps(query.budget),
        "aim": dict(query.aim),
        "request": dict(sorted(request_json(query).items())),
    }
