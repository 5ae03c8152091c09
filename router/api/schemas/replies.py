import builtins
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic_core import to_json, to_jsonable_python
from typing_extensions import is_typeddict

from ragbandit.client.replies import decisions as reply_types
from ragbandit.client.replies.status import ArmReply, LedgerReply, StatusReply
from ragbandit.router.learning.status import Status
from ragbandit.router.serving.deciding.steps.prices import price_name
from ragbandit.router.serving.explanations.explain import Explanation, preview_of
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.health.readiness import RouterState
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.rows.conversion import budget_caps
from ragbandit.router.storage.rows.outcome_rows import trace_json
from ragbandit.router.telemetry.tracing import trace_id_of
from ragbandit.shared.model_servers.failures import failover_facts, link_of
from ragbandit.shared.types import SENT_ID, Decision, Feedback, Outcome, Query

_Reply = TypeVar("_Reply")


def filled(kind: type[_Reply], value: object, **fields: object) -> _Reply:
    """Make a reply of this type. A field comes from `fields`, or else from the attribute of `value` with its name."""
    reply: Any = {}
    hinted: Any = kind
    for name, convert in _converters(hinted).items():
        if name in fields:
            reply[name] = fields[name]
        else:
            attribute = getattr(value, name)
            reply[name] = attribute if convert is None else convert(attribute)
    return reply  # type: ignore[no-any-return] # of the type `kind`


@cache
def _converters(kind: Any) -> dict[str, Callable[[Any], Any] | None]:
    """Field of a reply -> function that converts the attribute of that name; None for a plain value."""
    return {name: _converter(hint) for name, hint in get_type_hints(kind).items()}


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    parts = get_args(hint)
    if is_typeddict(hint):
        return lambda value: value and (dict(value) if isinstance(value, Mapping) else filled(hint, value))
    match get_origin(hint):
        case builtins.list:
            item = _converter(parts[0]) or _unchanged
            return lambda value: None if value is None else list(map(item, value))
        case builtins.dict:
            entry = _converter(parts[1]) or _unchanged
            return lambda value: None if value is None else {str(key): entry(one) for key, one in value.items()}
        case types.UnionType:
            return _converter(parts[0])
    return None


def _unchanged(value: Any) -> Any:
    return value


def headers(decision: Decision) -> dict[str, str]:
    trace, link = trace_id_of(decision.query.request), link_of(decision.query.request)
    return {
        "x-ragbandit-decision-id": decision.id,
        "x-ragbandit-strategy": decision.arm,
        "x-ragbandit-policy-version": decision.version,
        "x-ragbandit-propensity": repr(decision.propensity),
        "x-ragbandit-explored": str(decision.explored).lower(),
        **({} if decision.cost_weight is None else {"x-ragbandit-cost-weight": repr(decision.cost_weight)}),
        **({} if trace is None else {"x-ragbandit-trace-id": trace}),
        **({"x-ragbandit-failover": str(link["first"])} if link else {}),
    }


def decision_json(decision: Decision) -> reply_types.DecisionFields:
    pmf = dict(zip(decision.arms, decision.pmf, strict=True))
    scores = None if decision.scores is None else dict(zip(decision.arms, decision.scores, strict=True))
    price = price_name(decision.query)
    return filled(reply_types.DecisionFields, decision, decision_id=decision.id, pmf=pmf, scores=scores, price=price)


def route_json(decision: Decision, *, seconds: float) -> reply_types.RouteReply:
    """The reply of /v1/route. seconds: time that it took to decide and commit."""
    reply = cast(reply_types.RouteReply, {"route_ms": round(seconds * 1000, 3), **decision_json(decision)})
    if decision.query.asked is not None:
        reply["question"] = decision.query.text
    trace, failover = trace_id_of(decision.query.request), failover_facts(decision.query.request)
    if trace is not None:
        reply["trace_id"] = trace
    if failover is not None:
        reply["failover"] = failover
    return reply


def preview_json(decision: Decision) -> reply_types.PreviewReply:
    """The reply to a request that is only previewed. decision: by `Router.preview`."""
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
    return {**route_json(decision, seconds=seconds), **filled(reply_types.OutcomeFields, outcome), **savings}


def pending_json(decision: Decision, *, seconds: float) -> reply_types.PendingReply:
    return {**route_json(decision, seconds=seconds), "status": "pending", "answer": None}


def record_json(record: DecisionRecord) -> reply_types.RecordReply:
    decision = record.decision
    fields: dict[str, Any] = {**decision_json(decision), **_query_fields(decision.query)}
    fields |= {name: getattr(decision, name) for name in ("floor", "encoder_hash", "run_by", "made_at", "turn_of")}
    feedback = [_feedback_json(item, late=item.id in record.late) for item in record.feedback]
    if record.outcome is not None:
        fields["outcome"] = filled(reply_types.KeptOutcome, record.outcome, trace=trace_json(record.outcome.trace))
    return filled(
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
    return filled(reply_types.KeptFeedback, item, id=item.facts.get(SENT_ID, item.id), facts=facts, late=late)


def label_json(record: DecisionRecord) -> reply_types.LabelTask:
    assert record.outcome is not None
    decision = record.decision
    return filled(reply_types.LabelTask, record.outcome, question=decision.query.text, made_at=decision.made_at)


def _query_fields(query: Query) -> dict[str, Any]:
    return {
        "question": query.text,
        "asked": query.asked,
        "session_id": query.session,
        "messages": [{"role": message.role, "content": message.text} for message in query.messages],
        "context": dict(query.context),
        "tenant": query.tenant,
        "budget": budget_caps(query.budget),
        "forced": query.forced,
        "aim": dict(query.aim),
        "request": dict(query.request),
    }


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    values = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    return {**values, "record": record_json(explanation.record)}


def status_json(state: RouterState) -> StatusReply:
    ledger = ledger_json(state.ledger, label=state.label, arms=state.arms, rebuilding=state.rebuilding)
    return filled(StatusReply, state, **ledger)


def ledger_json(status: Status, *, label: str, arms: Sequence[ArmHealth], rebuilding: bool) -> LedgerReply:
    return filled(
        LedgerReply,
        status,
        policy=label,
        balanced=status.counters.balanced,
        rebuilding=rebuilding,
        arms={arm.arm: filled(ArmReply, arm) for arm in arms},
    )


def json_ready(reply: Any) -> Any:
    """The reply as JSON values: dataclasses become dicts, and numbers that are not finite become None."""
    return to_jsonable_python(reply, inf_nan_mode="null", fallback=dict)


def json_of(reply: Any) -> bytes:
    """The reply as JSON text. Halves of surrogate pairs are escaped, because UTF-8 cannot encode them."""
    try:
        return to_json(reply, inf_nan_mode="null", fallback=dict)
    except ValueError:
        return json.dumps(reply, default=dict).encode()
