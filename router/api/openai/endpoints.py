"""OpenAI's endpoints: models, chat completions, Open Responses.

A question is decided, committed and handed to a worker, whatever the door: a door (chat completions, responses) reads a
request and writes the reply, whole or in pieces.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Path as PathParameter, Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import (
    CallerGone,
    IdempotencyKey,
    awaited,
    caller_of,
    documented,
    reads_of,
    router_of,
)
from ragbandit.router.api.endpoints.decisions import decide, paced
from ragbandit.router.api.endpoints.streaming import STREAM_WAIT_S, AnswerEvent, EventStream, PendingAnswer, asked
from ragbandit.router.api.openai.chats import SAID, Chat, read_chat, said_of
from ragbandit.router.api.openai.replies import (
    ERRORS,
    RESPONSES,
    STREAM,
    AnswerTimeout,
    ChatCompletion,
    ChatStream,
    Model,
    ModelList,
    OpenAIErrorReply,
    ServerFault,
    completion,
    error_in_reply,
    fault_of,
    message_of,
)
from ragbandit.router.api.openai.requests import (
    ChatBody,
    OpenAIBody,
    check_supported,
    choice_of,
    model_list,
    named_model,
    query_of,
)
from ragbandit.router.api.openai.responses import (
    ID_PREFIX,
    ResponseBody,
    ResponseReply,
    ResponseStream,
    check_response,
    response,
)
from ragbandit.router.api.schemas.replies import headers
from ragbandit.router.api.schemas.requests import ID, KEY_HEADER, DecisionIdText, identity, plain_decision_id
from ragbandit.router.api.schemas.responses import JsonReply, described, refusal
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.serving.checks.questions import ID_PATTERN, new_id
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.decisions.tool_turns import TOOL_TURN, next_turn
from ragbandit.shared.errors import InvalidInput, NotFound, NotReady, RagBanditError
from ragbandit.shared.failures import successor_of
from ragbandit.shared.types import NAMED_ID, Decision, Json, Outcome, Query

log = logging.getLogger("ragbandit.api")

endpoints = documented("OpenAI")


@endpoints.get("/v1/models", summary="List the models", responses={**ERRORS, 200: described("All models.", ModelList)})
async def models(request: Request) -> Response:
    """List the models: `auto`, by which the policy chooses; `auto:<price>`, at each of the setting `cost_weights`; and
    `arm/<name>`, each arm that our workers run.
    """
    return JsonReply(model_list(router_of(request), caller=caller_of(request)))


@endpoints.get(
    "/v1/models/{model:path}",
    summary="Read one model",
    responses={**ERRORS, 200: described("The model.", Model)},
)
async def model(
    model: Annotated[str, PathParameter(description="Its id, for example `auto` or `arm/single_step`.")],
    request: Request,
) -> Response:
    """Tell whether there is a model of this name; 404 with the code `model_not_found` if not."""
    choice_of(model, router=router_of(request), field=None)
    return JsonReply(named_model(model))


@endpoints.post(
    "/v1/chat/completions",
    summary="Answer a chat message",
    responses={
        **ERRORS,
        200: described("The answer; with `stream` in pieces.", ChatCompletion) | {"content": STREAM},
        504: {"model": OpenAIErrorReply},
    },
)
async def chat(body: ChatBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Answer the last message of a conversation: an arm is drawn, a worker runs it.

    Made for clients of OpenAI's interface; docs/openai.md shows them. The reply's `id` is "chatcmpl-" and the id of
    the decision, which feedback may be sent for.
    """
    key, asks = _own_id(idempotency_key), read_chat(dict(body))
    check_supported(body)
    open_webui = any(name.startswith("x-openwebui-") for name in request.headers)
    stream = partial(ChatStream, include_usage=body.include_usage, open_webui=open_webui)
    return await answered(request, body, chat=asks, key=key, whole=completion, stream=stream)


def _own_id(sent: str | None) -> str | None:
    """The decision's id that the header Idempotency-Key has. Raises InvalidInput."""
    return identity(None, key=sent and plain_decision_id(sent), field=KEY_HEADER)


@endpoints.post("/v1/completions", include_in_schema=False)
async def completions(_request: Request) -> Response:
    """Say where completions are: clients that are not told to chat begin here."""
    raise NotFound(
        "the older completions are not served here, chat completions are",
        remedy="POST /v1/chat/completions; in LlamaIndex's OpenAILike set is_chat_model=True",
    )


async def record_of(
    request: Request, response_id: str, *, field: str = "response_id", tenant: str | None = None
) -> DecisionRecord:
    """The record of a response. Raises NotFound.

    One of another tenant, one that was made with `store: false` and one that was never made are the same. field: the
    parameter that names it. tenant: whose it must be; None: any that the caller may know of.
    """
    missing = NotFound("there is no response of this id", field=field, remedy="use the id that a response had")
    if not ID_PATTERN.fullmatch(response_id):
        raise missing
    router = router_of(request)
    try:
        await check_owner(request, response_id)
        record = await reads_of(request).run(lambda: router.decision(response_id))
        if record.outcome is not None and (successor := successor_of(record.outcome.made_by)) is not None:
            return await record_of(request, successor, field=field, tenant=tenant)
    except NotFound:
        raise missing from None
    query = record.decision.query
    if query.request.get("store") is False or tenant not in (None, query.tenant):
        raise missing
    return record


def stored_response(request: Request, record: DecisionRecord) -> dict[str, Any]:
    """The response of a record."""
    error, saved, outcome = None, None, record.outcome
    if outcome is not None:
        saved = router_of(request).savings.of(outcome.cost)
    elif record.state == "closed":
        error = {"code": "not_answered", "message": f"no arm answered: {record.reason or 'it waited too long'}"}
    return response(record.decision, outcome, base=str(request.base_url), saved=saved, error=error)


async def messages_before(request: Request, response_id: str, *, tenant: str) -> tuple[str, list[dict[str, Any]]]:
    """The session of a response and its conversation, its answer last; without its own `instructions`.

    tenant: whose question goes on from it. Raises NotFound, InvalidInput where its texts are not stored.
    """
    field = "previous_response_id"
    # A key of all tenants carries no text from one to another.
    record = await record_of(request, response_id, field=field, tenant=tenant)
    query, outcome = record.decision.query, record.outcome
    question = query.asked or query.text
    if not question:
        message = "the texts of this response were erased, or never stored (log.text)"
        raise InvalidInput(message, field=field, remedy="send the whole conversation as input")
    if outcome is None:
        remedy = f"wait for it: GET /v1/responses/{response_id}"
        raise InvalidInput("this response has no answer yet", field=field, remedy=remedy)
    own = bool(query.request.get("instructions"))
    before: list[dict[str, Any]] = [
        {"role": each.role, "content": each.text} for each in query.messages if not (own and each.role == "system")
    ]
    stored = query.request.get(SAID)
    messages = list(stored) if isinstance(stored, list) else [*before, {"role": "user", "content": question}]
    calls = message_of(outcome).get("tool_calls")
    if outcome.answer or calls:
        called = {"tool_calls": calls} if calls else {}
        messages.append({"role": "assistant", "content": outcome.answer or None, **called})
    return query.session or record.decision.id, messages


_RESPONSE: Final = f"{RESPONSES}/{{response_id}}"

ResponsePath = Annotated[DecisionIdText, PathParameter(description="Id of the response.", json_schema_extra=ID)]


@endpoints.post(
    RESPONSES,
    summary="Create a response",
    responses={
        **ERRORS,
        200: described("The response; with `stream` its events.", ResponseReply) | {"content": STREAM},
        504: {"model": OpenAIErrorReply},
    },
)
async def create(body: ResponseBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Answer the last message of a conversation: an arm is drawn, a worker runs it.

    Made for clients of Open Responses; docs/openai.md shows them. The id of the response is that of the decision, which
    feedback may be sent for.
    """
    check_response(body)
    key = _own_id(idempotency_key)
    own, before = key or f"{ID_PREFIX}{new_id()}", list[dict[str, Any]]()
    session: str | None = None if body.store is False else own
    if body.previous_response_id is not None:
        tenant = caller_of(request).tenant or "default"
        session, before = await messages_before(request, body.previous_response_id, tenant=tenant)
    chat, facts = read_chat(body.sent(before), at="input"), body.facts
    if body.store is not False:
        facts |= said_of(chat)
    return await answered(
        request,
        body,
        chat=chat,
        key=own,
        whole=response,
        stream=ResponseStream,
        session=session,
        facts=facts if key is not None else {**facts, NAMED_ID: False},  # the id is ours
    )


@endpoints.get(
    _RESPONSE,
    summary="Read a response",
    responses={**ERRORS, 200: described("The response.", ResponseReply)},
)
async def read(response_id: ResponsePath, request: Request) -> Response:
    """Read a response, whether there is an answer yet or not.

    404 for one that was never made, that is another tenant's, or that was made with `store: false`. Of a decision that
    another endpoint made, the response that it would have been.
    """
    record = await record_of(request, response_id)
    return JsonReply(stored_response(request, record), headers=headers(record.decision))


@endpoints.post(
    f"{_RESPONSE}/cancel",
    summary="Cancel a response",
    responses={**ERRORS, 200: described("The response as it is now.", ResponseReply)},
)
async def cancel(response_id: ResponsePath, request: Request) -> Response:
    """Tell the workers not to answer, or to stop where they are.

    The response is `in_progress` while a worker has still to end it. One that has ended stays as it is.
    """
    await record_of(request, response_id)
    router = router_of(request)
    await reads_of(request).run(lambda: router.cancel(response_id))
    return JsonReply(stored_response(request, await record_of(request, response_id)))


#: events of one reply in pieces, each as its bytes
ReplyStream = ChatStream | ResponseStream


async def answered(
    request: Request,
    body: OpenAIBody,
    *,
    chat: Chat,
    key: str | None,
    whole: Callable[..., Mapping[str, Any]],
    stream: Callable[..., ReplyStream],
    session: str | None = None,
    facts: Mapping[str, Json] | None = None,
) -> Response:
    """The reply to a question: it is decided, and a worker answers it.

    chat: what it asks for. key: the id that the decision is to have. whole: writes the reply of (decision, outcome,
    base=URL of this service, saved=dollars or None). stream: the events of the reply to (decision, base=...). session:
    the conversation, where no header names one. facts: what else is kept of the request. Raises what is wrong before
    there is a decision. What fails later is replied so that clients do not ask again by themselves: they would have a
    second decision made for the same question.
    """
    query = query_of(request, body, chat=chat, key=key, session=session, facts=facts or {})
    query = await paced(request, await _with_turn(request, query, results=chat.results))
    router = router_of(request)
    with router.answers.place(query):
        query = await awaited(request, router.conversations.submit(chat.turns, query=query), what="Idempotency-Key")
        decision, _ = await decide(request, query, run_by="worker")
        settings, base = router.settings, str(request.base_url)
        limit_s = max(settings.server.answer_wait_s, settings.budget.seconds + STREAM_WAIT_S)
        try:
            answer = await asked(request, decision, live=bool(body.stream), limit_s=limit_s)
        except RagBanditError as error:
            return _failed_reply(request, decision, error)
    if body.stream:
        events = _streamed(answer, stream=partial(stream, base=base))
        return EventStream(events, answer=answer, refused=lambda error: _failed_reply(request, answer.decision, error))
    try:
        (outcome,) = [event async for event in _events(answer) if isinstance(event, Outcome)]
    except RagBanditError as error:
        return _failed_reply(request, answer.decision, error)
    finally:
        answer.forget()
    decision, saved = answer.decision, router.savings.of(outcome.cost)
    return JsonReply(whole(decision, outcome, base=base, saved=saved), headers=headers(decision))


async def _with_turn(request: Request, query: Query, *, results: Sequence[str]) -> Query:
    """The query; one that brings the results of tools to an arm that called them is answered by that arm.

    results: ids of the calls. It is drawn as any other where the loop had too many turns or took too long, or the
    caller may not have, or does not want, that arm. Raises StoreError.
    """
    if not results:
        return query
    router, settings = router_of(request), router_of(request).settings.conversation
    find = partial(next_turn, router.database, results, tenant=query.tenant)
    turn = await reads_of(request).run(find)
    if turn is None or turn.number > settings.tool_turns or time.time() > turn.began_at + settings.tool_turns_s:
        return query
    if turn.arm not in router.service.passing or (query.arms is not None and turn.arm not in query.arms):
        return query
    return replace(query, arms=(turn.arm,), forced=True, request={**query.request, TOOL_TURN: turn.facts})


async def _events(answer: PendingAnswer) -> AsyncIterator[AnswerEvent | None]:
    """The events of an answer, its outcome last. Raises the error that the reply is to be; CallerGone."""
    event: AnswerEvent | None = None
    try:
        async with aclosing(answer.events()) as events:  # type: ignore[type-var] # a generator
            async for event in events:
                if isinstance(event, Outcome) and (fault := fault_of(answer.decision, event)) is not None:
                    raise fault
                yield event
    except TimeoutError:
        remedy = f"ask for the answer in a while: GET /v1/decisions/{answer.decision.id}"
        raise NotReady("the service is shutting down; the decision stands", remedy=remedy) from None
    if not isinstance(event, Outcome):
        message = f"no answer within {answer.limit_s:g} s; the decision stands, and its answer may come"
        raise AnswerTimeout(message, remedy=f"ask for it: GET /v1/decisions/{answer.decision.id}")


def _failed_reply(request: Request, decision: Decision, error: RagBanditError) -> Response:
    """The reply to a question that was decided, and whose answer failed."""
    reply = refusal(error, scope=request.scope)
    reply.headers.update(headers(decision))
    if isinstance(error, ServerFault):
        reply.status_code = error.status  # a 422 of the server stays one
    if error.status != 429:  # that one is worth another question, after the time that the server names
        reply.headers["x-should-retry"] = "false"
    return reply


#: longest delay of the beginning of a stream, seconds: it waits for the first content, and proxies close silent
#: connections
HOLD_S: Final = 30.0


async def _streamed(answer: PendingAnswer, *, stream: Callable[[Decision], ReplyStream]) -> AsyncIterator[bytes]:
    """The events of a stream to its end. Raises CallerGone, and the error of an answer that failed before any event."""
    savings, begin_at = router_of(answer.request).savings, time.monotonic() + HOLD_S
    reply, has_begun = stream(answer.decision), False
    try:
        async with aclosing(_events(answer)) as events:  # type: ignore[type-var] # a generator
            async for event in events:
                if reply.decision is not answer.decision:
                    reply = stream(answer.decision)
                if event is None and not has_begun and time.monotonic() < begin_at:
                    continue
                parts = (
                    reply.end(event, saved=savings.of(event.cost)) if isinstance(event, Outcome) else reply.of(event)
                )
                has_begun = has_begun or bool(parts)
                for part in parts:
                    yield part
    except CallerGone:
        raise
    except Exception as error:
        if not has_begun:
            raise
        for part in reply.failure(_error_in_stream(error, has_content=reply.has_begun)):
            yield part


def _error_in_stream(error: Exception, *, has_content: bool) -> dict[str, Any]:
    """The error of a reply that has begun: what failed can only be said in it."""
    fault = error if isinstance(error, RagBanditError) else None
    if fault is None:
        log.error("unexpected error in a stream", extra={"action": "error"}, exc_info=error)
        fault = RagBanditError("the service failed; its log has the traceback")
    shown = error_in_reply(fault)
    if has_content and isinstance(fault, ServerFault):
        shown["message"] += ". A part of the answer had been sent, so that no other arm was asked"
    return shown
