"""Functions of all doors for a question: make the query of a body, apply budgets to it, decide it, or preview it."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import await_all, await_future, caller_of, router_of, tracing_of
from ragbandit.router.api.request_state import request_state
from ragbandit.router.api.schemas.question_headers import ARM, headers_of
from ragbandit.router.api.schemas.requests import RouteBody, idempotency_id
from ragbandit.router.api.schemas.responses import JsonReply
from ragbandit.router.api.security.ownership import permitted_arms, tenant_of, terms_of_caller, unit_of
from ragbandit.router.operation.pacing import Budgets
from ragbandit.router.replies import decisions as replies
from ragbandit.router.serving.checks.questions import checked_text
from ragbandit.router.serving.conversations import with_chat
from ragbandit.router.serving.router import Router
from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.tracing import TRACEPARENT, TRACESTATE, Attribute, Span
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Budget, Decision, DecisionId, Message, Query, RunBy, Sent


async def rewritten_query(request: Request, body: RouteBody, *, key: str | None, run_by: RunBy) -> Query:
    """Make the query of a body, with its question rewritten if it follows a conversation.

    Raises InvalidInput, Forbidden, BudgetSpent, LimitReached, StoreError, NotReady and CallerGone.
    """
    query = await query_of_body(request, body, key=key, run_by=run_by)
    return query if isinstance(query, Query) else await await_future(request, query, name="decision_id")


async def query_of_body(
    request: Request, body: RouteBody, *, key: str | None, run_by: RunBy
) -> "Query | Future[Query]":
    """The query, or its Future if the question has to be rewritten. Raises as `rewritten_query`."""
    decision_id, caller = idempotency_id(body.decision_id, key=key, field="decision_id"), caller_of(request)
    tenant = tenant_of(caller, given=body.tenant if "tenant" in body.model_fields_set else None)
    router, headers = router_of(request), headers_of(request)
    arms = _named_arms(body, by_header=headers.arm)
    context = headers.merge_context(body.context, schema=router.settings.context)
    sent_unit = headers.unit if body.unit is None else body.unit
    query = Query(
        id=None if decision_id is None else DecisionId(decision_id),
        text=body.question,
        context=context,
        arms=permitted_arms(arms, unit=sent_unit, tenant=tenant, caller=caller, router=router, run_by=run_by),
        budget=Budget(**body.budget.model_dump()) if "budget" in body.model_fields_set else Budget(),
        tenant=tenant,
        arm_by=None if headers.arm is None else "caller",
        session=headers.session if body.session_id is None else body.session_id,
        unit=unit_of(caller, given=sent_unit),
        cost_weight=body.cost_weight,
        aim=body.aim or {},
        api_key=caller.key,
        sent=Sent(
            surface=request_state(request.scope).part,
            agent=headers.agent,
            may_fail_over=body.failover is not False,
            effort_min=body.effort_min,
            effort_max=body.effort_max,
        ),
        terms=terms_of_caller(caller, tenant=tenant, router=router),
    )
    query = await with_budgets(request, query)
    if not body.messages:
        return query
    turns = [Message(role=message.role, text=message.content) for message in body.messages]
    question = Message(role="user", text=checked_text(query.text, field="question"))
    query = with_chat(query, [*turns, question], settings=router.settings.conversation)
    return query if headers.is_preview else router.conversations.rewrite(query)


def _named_arms(body: RouteBody, *, by_header: ArmName | None) -> tuple[ArmName, ...] | None:
    """The arms that a request names; None for all. Raises InvalidInput if its header names none of the body's arms."""
    if by_header is None:
        return None if body.arms is None else tuple(map(ArmName, body.arms))
    if body.arms is not None and by_header not in body.arms:
        message = f"the header names the arm {by_header!r}, which is not in arms"
        raise InvalidInput(message, field=ARM, remedy="leave arms out, or name one of them in the header")
    return (by_header,)


async def with_budgets(request: Request, query: Query) -> Query:
    """Apply dollar budgets and the limits of task and session to a query, before the query costs anything.

    Raises BudgetSpent, LimitReached, StoreError.
    """
    budgets: Budgets = request.scope["app"].state.budgets
    return await budgets.apply(query, caller=caller_of(request), is_preview=headers_of(request).is_preview)


async def preview(request: Request, query: Query, *, run_by: RunBy) -> Response:
    """The reply to a question that is only previewed: nothing is drawn, stored or counted."""
    shown = await await_future(request, router_of(request).preview(query, run_by=run_by), name="decision_id")
    return JsonReply(replies.preview_json(shown))


async def decide(request: Request, query: Query, *, run_by: RunBy) -> tuple[Decision, float]:
    """Decide, commit and count a question. Returns (decision, seconds that this took)."""
    router, began = router_of(request), time.perf_counter()
    tracing = tracing_of(request)
    with tracing.span(names.DECIDE, attributes=_query_attributes(query) if tracing.enabled else {}) as span:
        query = _with_trace(request, query, span=span)
        decision = await await_future(request, router.submit(query, run_by=run_by), name="decision_id")
        if tracing.enabled:
            span.set(_decision_attributes(decision))
    seconds = time.perf_counter() - began
    request.app.state.metrics.count_decision(decision, seconds=seconds)
    return decision, seconds


async def decide_each(request: Request, queries: Sequence[Query]) -> tuple[list[Decision | BaseException], float]:
    """Decide, commit and count questions for the caller's own pipeline, as `decide`. Returns (decision or error of each
    question, seconds for all of them).
    """
    tracing, metrics = tracing_of(request), request.app.state.metrics
    spans = [tracing.begin(names.DECIDE, attributes=_query_attributes(query)) for query in queries]
    traced = [_with_trace(request, query, span=span) for query, span in zip(queries, spans, strict=True)]
    began = time.perf_counter()
    submitted = router_of(request).submit_many(traced) if traced else ()
    results = await await_all(request, submitted, name="decision_id")
    seconds = time.perf_counter() - began
    for span, result in zip(spans, results, strict=True):
        if isinstance(result, Decision):
            span.set(_decision_attributes(result))
            metrics.count_decision(result, seconds=seconds)
        else:
            span.fail(type(result).__name__)
        span.end()
    return results, seconds


def _with_trace(request: Request, query: Query, *, span: Span) -> Query:
    """Add the trace to a query, and the request's id if the caller chose it, or if traces or JSON logs are on."""
    router: Router = request.scope["app"].state.router
    if not (span.is_recorded or router.settings.log.format == "json" or "x-request-id" in request.headers):
        return query
    carrier = span.carrier if span.is_recorded else {}
    sent = replace(query.sent, traceparent=carrier.get(TRACEPARENT), tracestate=carrier.get(TRACESTATE))
    return replace(query, sent=replace(sent, request_id=request_state(request.scope).request_id))


def _query_attributes(query: Query) -> dict[str, Attribute | None]:
    return {names.SPAN_KIND: "DECISION", names.CONVERSATION: query.own_session}


def _decision_attributes(decision: Decision) -> dict[str, Attribute | None]:
    return {
        names.DECISION_ID: decision.id,
        names.DECISION_ARM: decision.arm,
        names.DECISION_PROPENSITY: decision.propensity,
        names.DECISION_EXPLORED: decision.explored,
        names.DECISION_POLICY: decision.policy,
        names.DECISION_VERSION: decision.version,
        names.DECISION_DEGRADED: decision.fault is not None,
    }
