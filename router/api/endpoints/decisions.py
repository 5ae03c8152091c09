import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import Path as PathParameter, Query as QueryParameter, Request
from fastapi.responses import Response

from ragbandit.client.replies import decisions as reply_types
from ragbandit.router.api.asking import decide, decide_each, preview, query_of_body, rewritten_query
from ragbandit.router.api.dependencies import (
    BatchKey,
    IdempotencyKey,
    await_all,
    await_future,
    check_count,
    reads_of,
    router_of,
    wait_for_all,
)
from ragbandit.router.api.endpoints.streaming import STREAM_WAIT_S, EventStream, answer_events, request_answer
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.question_headers import headers_of
from ragbandit.router.api.schemas.requests import (
    ID,
    DecisionIdText,
    OutcomeBody,
    RouteBatchBody,
    RouteBody,
    body_of,
    item_ids,
)
from ragbandit.router.api.schemas.responses import JsonReply, decision_headers, error_item, reply_description
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.api.security.rules import QUESTION, AccessRule, roles
from ragbandit.router.operation.budgets import BudgetSpent
from ragbandit.router.replies import decisions as replies
from ragbandit.router.replies.values import build_reply
from ragbandit.router.serving.checks.reports import check_charged, make_outcome
from ragbandit.shared.errors import Forbidden, InvalidInput, LimitReached, Overloaded, RagBanditError
from ragbandit.shared.types import Decision, Query

MAX_WAIT_S = 600

DecisionPath = Annotated[
    DecisionIdText, PathParameter(description="Id of the decision, or of its chat completion.", json_schema_extra=ID)
]
WaitParameter = Annotated[
    float | None,
    QueryParameter(
        description="Seconds to wait for the answer, 0 to 600. Default: the setting `server.answer_wait_s`; with "
        "`stream` the setting `budget.seconds` plus 30 s. After that time the reply is 202 with status "
        '"pending". It is a query parameter because the body describes the decision, not the call.',
        openapi_examples={"ten seconds": {"value": 10}},
        json_schema_extra={"minimum": 0, "maximum": MAX_WAIT_S},
    ),
]
StreamParameter = Annotated[
    bool,
    QueryParameter(
        description="Reply with server-sent events while the arm writes: `decision`, `status` (what the arm does), "
        "`text` (the next piece of the answer), and at the end `outcome` (the reply without `stream`) or `error`. "
        "See docs/streaming.md."
    ),
]

endpoints = Endpoints("Decisions")


@endpoints.post(
    "/v1/route",
    rule=QUESTION,
    summary="Choose an arm for your own pipeline",
    responses={200: reply_description("The arm to run.", reply_types.RouteReply)},
)
async def route(body: RouteBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Draw an arm for a question. Your own pipeline runs the arm and reports the outcome to /v1/outcomes.

    The decision is stored, with the probability of every arm, before the reply is sent.
    """
    query = await rewritten_query(request, body, key=idempotency_key, run_by="caller")
    if headers_of(request).is_preview:
        return await preview(request, query, run_by="caller")
    decision, seconds = await decide(request, query, run_by="caller")
    return JsonReply(replies.route_json(decision, seconds=seconds), headers=decision_headers(decision))


@endpoints.post(
    "/v1/route/batch",
    rule=replace(QUESTION, size_limit="max_batch_bytes"),
    summary="Choose arms for many questions",
    responses={200: reply_description("A decision or an error for each item.", reply_types.RouteBatchReply)},
)
async def batch(body: RouteBatchBody, request: Request, idempotency_key: BatchKey = None) -> Response:
    """Draw an arm for each of up to `server.max_batch_items` questions (default 512).

    Each question is decided and stored, or refused, on its own. The reply has one entry per item, in order: a decision
    or an error. 503 if the service is too busy to read the questions.
    """
    check_count(body.items, most=router_of(request).settings.server.max_batch_items)
    keys = item_ids(body.items, key=idempotency_key, field="decision_id")
    items = [await _item_query(request, item, key=key) for item, key in zip(body.items, keys, strict=True)]
    if headers_of(request).is_preview:
        return JsonReply({"items": await _preview_items(request, items)})
    reply: reply_types.RouteBatchReply = {"items": await _decide_items(request, items)}
    return JsonReply(reply)


async def _decide_items(
    request: Request, items: "Sequence[Query | Future[Query] | RagBanditError]"
) -> list[reply_types.RouteReply | reply_types.ErrorReply]:
    """A decision or an error for each item, in order. All questions are decided after the last rewrite.

    items: queries, Futures of queries that have to be rewritten, and errors.
    """
    rewrites = await await_all(request, [entry for entry in items if isinstance(entry, Future)], name="decision_id")
    rewritten = iter(rewrites)
    questions = [next(rewritten) if isinstance(entry, Future) else entry for entry in items]
    queries = [question for question in questions if isinstance(question, Query)]
    results, seconds = await decide_each(request, queries)
    decided = iter(results)
    entries = [next(decided) if isinstance(question, Query) else question for question in questions]
    return [
        replies.route_json(entry, seconds=seconds) if isinstance(entry, Decision) else error_item(entry)
        for entry in entries
    ]


async def _preview_items(
    request: Request, items: "Sequence[Query | Future[Query] | RagBanditError]"
) -> list[reply_types.PreviewReply | reply_types.ErrorReply]:
    """A preview or an error for each item, in order.

    items: queries, and errors of items that could not be read. Previews rewrite no question, so `items` has no Futures.
    """
    submitted = list[Future[Decision] | RagBanditError]()
    for entry in items:
        if isinstance(entry, Query):
            try:
                submitted.append(router_of(request).preview(entry))
            except (InvalidInput, Forbidden, Overloaded) as error:
                submitted.append(error)
        elif isinstance(entry, RagBanditError):
            submitted.append(entry)
    waiting = [entry for entry in submitted if isinstance(entry, Future)]
    done = await await_all(request, waiting, name="request")
    results = iter(done)
    entries = [next(results) if isinstance(entry, Future) else entry for entry in submitted]
    return [replies.preview_json(one) if isinstance(one, Decision) else error_item(one) for one in entries]


async def _item_query(
    request: Request, item: Mapping[str, Any], *, key: str | None
) -> "Query | Future[Query] | RagBanditError":
    try:
        return await query_of_body(request, body_of(RouteBody, item), key=key, run_by="caller")
    except (InvalidInput, Forbidden, BudgetSpent, LimitReached) as error:
        return error


@endpoints.post(
    "/v1/answer",
    rule=QUESTION,
    summary="Answer a question",
    responses={
        200: reply_description("The outcome; with `stream` events.", reply_types.AnswerReply)
        | {"content": {"text/event-stream": {"schema": {"description": "server-sent events"}}}},
        202: reply_description("There is no outcome yet.", reply_types.PendingReply),
    },
)
async def answer(
    body: RouteBody,
    request: Request,
    idempotency_key: IdempotencyKey = None,
    wait_s: WaitParameter = None,
    stream: StreamParameter = False,  # noqa: FBT002 - a query parameter
) -> Response:
    """Draw an arm for a question and have a worker run it.

    202 with status "pending" if the answer takes longer than `wait_s`. To get it later, send the same request with the
    same id, or read /v1/decisions/{decision_id}.
    """
    router = router_of(request)
    if wait_s is not None and not 0 <= wait_s <= MAX_WAIT_S:
        remedy = f"send a number in [0, {MAX_WAIT_S}]"
        raise InvalidInput(f'"wait_s" is out of range: {wait_s!r}', field="wait_s", remedy=remedy)
    if wait_s is None:
        wait_s = router.settings.budget.seconds + STREAM_WAIT_S if stream else router.settings.server.answer_wait_s
    query = await rewritten_query(request, body, key=idempotency_key, run_by="worker")
    with router.process.answers.reserve(query):
        if headers_of(request).is_preview:
            return await preview(request, query, run_by="worker")
        decision, seconds = await decide(request, query, run_by="worker")
        pending = await request_answer(request, decision, live=stream, limit_s=wait_s, is_own=query.id is None)
    if stream:
        return EventStream(answer_events(pending, seconds=seconds), answer=pending)
    try:
        outcome = pending.waiting.result() if await wait_for_all(request, [pending.waiting], limit_s=wait_s) else None
    except TimeoutError:  # the service is shutting down
        outcome = None
    finally:
        pending.forget()
    if outcome is None:
        pending_reply = replies.pending_json(decision, seconds=seconds)
        return JsonReply(pending_reply, status_code=202, headers=decision_headers(decision))
    await pending.follow(outcome.decision_id)
    decision, saved = pending.decision, router.process.savings.of(outcome.cost)
    reply = replies.answer_json(decision, outcome, seconds=seconds, saved=saved)
    return JsonReply(reply, headers=decision_headers(decision))


@endpoints.post(
    "/v1/outcomes",
    rule=AccessRule(roles("app", "worker"), queue="outcomes"),
    status_code=202,
    summary="Report what your own pipeline did",
    responses={
        200: reply_description("This outcome was stored before.", reply_types.OutcomeReply),
        202: reply_description("Stored.", reply_types.OutcomeReply),
    },
)
async def outcomes(body: OutcomeBody, request: Request) -> Response:
    """Store the outcome of a decision that your own pipeline ran: its answer, cost, and how it ended."""
    router = router_of(request)
    outcome = make_outcome(now=time.time(), **body.model_dump())
    await check_owner(request, outcome.decision_id)
    if body.cost and "steps" not in body.model_fields_set:
        reward, is_stored = router.settings.reward, router.store.has_outcome
        charged = partial(check_charged, outcome, cost=body.cost, reward=reward, is_stored=is_stored)
        await reads_of(request).run(charged)
    new = await await_future(request, router.submit_outcome(outcome), name="decision_id")
    reply: reply_types.OutcomeReply = {"decision_id": body.decision_id, "duplicate": not new}
    saved = router.process.savings.of(outcome.cost)
    if saved is not None:
        reply["saved"] = saved
    return JsonReply(reply, status_code=202 if new else 200)


@endpoints.post(
    "/v1/decisions/{decision_id}/cancel",
    rule=AccessRule(roles("app", "operator")),
    status_code=202,
    summary="Cancel an answer",
    responses={
        200: reply_description("The answer has ended; the reply says how.", reply_types.CancellationReply),
        202: reply_description("A worker still has to stop.", reply_types.CancellationReply),
    },
)
async def cancel(decision_id: DecisionPath, request: Request) -> Response:
    """Cancel the answer to a decision: 202 while a worker still has to stop, 200 if the answer has ended."""
    router = router_of(request)
    await check_owner(request, decision_id)
    state = await reads_of(request).run(lambda: router.cancel(decision_id))
    reply = build_reply(reply_types.CancellationReply, state, status=state.status or "pending")
    return JsonReply(reply, status_code=202 if state.status is None else 200)
