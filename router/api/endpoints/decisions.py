"""Decision endpoints: answer, outcomes, cancel, and the record of a decision."""

import asyncio
import time
from functools import partial
from typing import Annotated

from fastapi import Path as PathParameter, Query as QueryParameter, Request
from fastapi.responses import Response

from ragbandit.client.replies.decisions import AnswerReply, CancellationReply, OutcomeReply, PendingReply, RecordReply
from ragbandit.router.api.dependencies import IdempotencyKey, all_done, awaited, documented, reads_of, router_of
from ragbandit.router.api.endpoints.routing import decide, whole_query
from ragbandit.router.api.endpoints.streaming import PendingAnswer, streamed_answer, want_events
from ragbandit.router.api.schemas.replies import (
    answer_json,
    cancellation_json,
    explanation_json,
    headers,
    pending_json,
    record_json,
)
from ragbandit.router.api.schemas.requests import ID, DecisionIdText, OutcomeBody, RouteBody
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.checks.reports import check_charged, made_outcome
from ragbandit.router.serving.explanations.explain import Explanation, explain
from ragbandit.shared.errors import InvalidInput

#: longest wait_s of /v1/answer, seconds
MAX_WAIT_S = 600
#: a stream waits that much longer than an arm may take, unless told otherwise: the question waits for a worker, seconds
STREAM_WAIT_S = 30.0

DecisionPath = Annotated[
    DecisionIdText,
    PathParameter(
        description="The id that the decision was made with, or that of its chat completion.", json_schema_extra=ID
    ),
]
WaitParameter = Annotated[
    float | None,
    QueryParameter(
        description="Seconds to wait for the answer, 0 to 600. Left out: the setting `server.answer_wait_s`; with "
        "`stream` the setting `budget.seconds` and half a minute. "
        'After that the reply is 202 with status "pending". '
        "It is a query parameter, not a field of the body: it belongs to this call, "
        "not to the request that `decision_id` identifies.",
        openapi_examples={"ten seconds": {"value": 10}},
        json_schema_extra={"minimum": 0, "maximum": MAX_WAIT_S},
    ),
]
StreamParameter = Annotated[
    bool,
    QueryParameter(
        description="Reply with server-sent events while the arm writes: `decision`, `status` (what the arm does), "
        "`text` (the next piece of the answer), and last `outcome` (what the reply is without `stream`) or `error`. "
        "See docs/streaming.md.",
    ),
]

endpoints = documented("Decisions")


@endpoints.post(
    "/v1/answer",
    summary="Answer a question",
    responses={
        200: described("The outcome; with `stream` events.", AnswerReply)
        | {"content": {"text/event-stream": {"schema": {"description": "server-sent events"}}}},
        202: described("The outcome is not there yet.", PendingReply),
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

    202 with status "pending" if the answer takes longer than `wait_s`; send the same request again with the same
    id, or ask /v1/decisions/{decision_id}.
    """
    router = router_of(request)
    if wait_s is not None and not 0 <= wait_s <= MAX_WAIT_S:
        remedy = f"send a number in [0, {MAX_WAIT_S}]"
        raise InvalidInput(f'"wait_s" is out of range: {wait_s!r}', field="wait_s", remedy=remedy)
    query = await whole_query(request, body, key=idempotency_key, run_by="worker")
    with router.answers.place(query):
        decision, seconds = await decide(request, query, run_by="worker")
        if stream:
            await want_events(request, decision)
        # Not given up with the caller: the decision is stored, and the recovery loop would ask for its answer.
        waiting = await asyncio.wait_for(asyncio.wrap_future(router.answers.submit(decision)), SERVE_S)
    settings = router.settings
    if stream:
        limit_s = settings.budget.seconds + STREAM_WAIT_S if wait_s is None else wait_s
        streamed = PendingAnswer(request=request, decision=decision, waiting=waiting, limit_s=limit_s)
        return streamed_answer(streamed, seconds=seconds)
    wait_s = settings.server.answer_wait_s if wait_s is None else wait_s
    try:
        outcome = waiting.result() if await all_done(request, [waiting], limit_s=wait_s) else None
    except TimeoutError:  # the service is about to end
        outcome = None
    finally:
        router.answers.remove(decision.id, waiting)
    if outcome is None:
        return JsonReply(pending_json(decision, seconds=seconds), status_code=202, headers=headers(decision))
    saved = router.savings.of(outcome.cost)
    return JsonReply(answer_json(decision, outcome, seconds=seconds, saved=saved), headers=headers(decision))


@endpoints.post(
    "/v1/outcomes",
    status_code=202,
    summary="Report what your own pipeline did",
    responses={
        200: described("This very outcome was stored before.", OutcomeReply),
        202: described("Stored.", OutcomeReply),
    },
)
async def outcomes(body: OutcomeBody, request: Request) -> Response:
    """Store the outcome of a decision that your own pipeline ran: its answer, cost, and how it ended."""
    router = router_of(request)
    outcome = made_outcome(now=time.time(), **body.model_dump())
    await check_owner(request, outcome.decision_id)
    if body.cost and "steps" not in body.model_fields_set:
        reward, is_stored = router.settings.reward, router.store.has_outcome
        charged = partial(check_charged, outcome, cost=body.cost, reward=reward, is_stored=is_stored)
        await reads_of(request).run(charged)
    new = await awaited(request, router.submit_outcome(outcome), what="decision_id")
    reply: OutcomeReply = {"decision_id": body.decision_id, "duplicate": not new}
    if (saved := router.savings.of(outcome.cost)) is not None:
        reply["saved"] = saved
    return JsonReply(reply, status_code=202 if new else 200)


@endpoints.get(
    "/v1/decisions/{decision_id}",
    summary="Read a decision",
    responses={200: described("All that is stored about the decision.", RecordReply)},
)
async def decision(decision_id: DecisionPath, request: Request) -> Response:
    """All that is stored about a decision: question, probabilities, outcome, feedback, reward, state."""
    router = router_of(request)
    await check_owner(request, decision_id)
    record = await reads_of(request).run(lambda: router.decision(decision_id))
    return JsonReply(record_json(record), headers=headers(record.decision))


@endpoints.get(
    "/v1/decisions/{decision_id}/explanation",
    summary="Explain a decision",
    responses={200: described("The decision explained.", Explanation)},
)
async def explanation(decision_id: DecisionPath, request: Request) -> Response:
    """Why a decision was made and what came of it.

    The draw, its reasons in plain sentences, the steps of the answer, feedback, reward, and why it waits.
    """
    explained = await explained_for(request, decision_id)
    return JsonReply(explanation_json(explained), headers=headers(explained.record.decision))


async def explained_for(request: Request, decision_id: str) -> Explanation:
    """The decision explained, for who may see it. Raises NotFound, InvalidInput."""
    router = router_of(request)
    await check_owner(request, decision_id)
    rule = closing_rule(router.settings.learning)
    return await reads_of(request).run(lambda: explain(router.store, decision_id, rule=rule))


@endpoints.post(
    "/v1/decisions/{decision_id}/cancel",
    status_code=202,
    summary="Cancel an answer",
    responses={
        200: described("The decision has an outcome: how it ended.", CancellationReply),
        202: described("A worker has still to end it.", CancellationReply),
    },
)
async def cancel(decision_id: DecisionPath, request: Request) -> Response:
    """Tell the workers not to answer a decision, or to stop where they are.

    202 while a worker has still to end it, 200 with how it ended.
    """
    router = router_of(request)
    await check_owner(request, decision_id)
    state = await reads_of(request).run(lambda: router.cancel(decision_id))
    return JsonReply(cancellation_json(state), status_code=202 if state.status is None else 200)
