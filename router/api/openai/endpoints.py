"""OpenAI's endpoints: models, chat completions, Open Responses.

A question is decided, committed and handed to a worker, whatever the door: a door (chat completions, responses) reads a
request and writes the reply, whole or in pieces.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
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
from ragbandit.router.api.endpoints.decisions import decide, paced, plain_body
from ragbandit.router.api.endpoints.streaming import STREAM_WAIT_S, AnswerEvent, EventStream, PendingAnswer, asked
from ragbandit.router.api.openai.chats import MOST_SAID, SAID, Chat, is_reference, read_chat, said_of
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
    Unsupported,
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
from ragbandit.router.api.openai.response_stream import ResponseStream
from ragbandit.router.api.openai.responses import (
    ID_PREFIX,
    ResponseBody,
    ResponseReply,
    check_response,
    decisions_of_item,
    response,
)
from ragbandit.router.api.openai.tool_loops import hashed
from ragbandit.router.api.schemas.replies import headers
from ragbandit.router.api.schemas.requests import ID, KEY_HEADER, DecisionIdText, identity, plain_decision_id
from ragbandit.router.api.schemas.responses import JsonReply, described, refusal
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.serving.checks.questions import ID_PATTERN, new_id
from ragbandit.router.serving.deciding.needs import lacks_of
from ragbandit.router.serving.overview import Savings
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.decisions.tool_turns import CONVERSATION, RESULTS, TOOL_TURN, ToolTurn, next_turn
from ragbandit.router.storage.rows.conversion import CHAT_HASH, body_hash
from ragbandit.shared.errors import Conflict, InvalidInput, NotFound, NotReady, RagBanditError
from ragbandit.shared.failures import successor_of
from ragbandit.shared.types import NAMED_ID, Decision, Json, Outcome, Query

log = logging.getLogger("ragbandit.api")

endpoints = documented("OpenAI", any_parameter=True)


@endpoints.get("/v1/models", summary="List the models", responses={**ERRORS, 200: described("All models.", ModelList)})
async def models(request: Request) -> Response:
    """List the models: `auto`, by which the policy chooses; `auto:<price>`, at each of the setting `cost_weights`; and
    `arm/<name>`, each arm that our workers run.
    """
    return JsonReply(model_list(router_of(request), caller=caller_of(request)))


@endpoints.get(
    "/v1/models/{model:path}", summary="Read one model", responses={**ERRORS, 200: described("The model.", Model)}
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
    key, passed = _own_id(idempotency_key), bool(router_of(request).service.passing)
    asks = read_chat(dict(body), passed=passed)
    check_supported(body)
    open_webui = any(name.startswith("x-openwebui-") for name in request.headers)
    stream = partial(ChatStream, include_usage=body.include_usage, open_webui=open_webui)
    return await answered(request, body, chat=asks, key=key, whole=completion, stream=stream)


async def chat_directly(request: Request) -> Response | None:
    """The reply to a plain chat completion; None for one that FastAPI is to look at (see `route_directly`)."""
    body = await plain_body(request, ChatBody)
    return None if body is None else await chat(body, request, request.headers.get(KEY_HEADER))


async def create_directly(request: Request) -> Response | None:
    """The reply to a plain response that is to be created; None for one that FastAPI is to look at."""
    body = await plain_body(request, ResponseBody)
    return None if body is None else await create(body, request, request.headers.get(KEY_HEADER))


def _own_id(sent: str | None) -> str | None:
    """The decision's id that the header Idempotency-Key has. Raises InvalidInput."""
    return identity(None, key=sent and plain_decision_id(sent), field=KEY_HEADER)


@endpoints.post("/v1/completions", include_in_schema=False)
async def completions(_request: Request) -> Response:
    """Name the endpoint of chat completions: clients that do not chat by default begin here."""
    raise NotFound(
        "the older completions are not served here, chat completions are",
        remedy="POST /v1/chat/completions; in LlamaIndex's OpenAILike set is_chat_model=True",
    )


async def record_of(
    request: Request, response_id: str, *, field: str = "response_id", tenant: str | None = None
) -> DecisionRecord:
    """The record of a response. Raises NotFound, also for one of another tenant or made with `store: false`.

    field: the parameter with its id. tenant: the tenant that must own it; None for every tenant of the caller.
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


async def messages_before(request: Request, response_id: str) -> tuple[Decision, list[dict[str, Any]]]:
    """The decision of a response and its conversation, its answer last; without its own `instructions`.

    Raises NotFound, InvalidInput where its texts are not stored.
    """
    field, tenant = "previous_response_id", caller_of(request).tenant or "default"
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
    if isinstance(stored, int):
        message = f"the messages of this response have {stored} characters, and {MOST_SAID} are kept"
        raise InvalidInput(message, field=field, remedy="send the whole conversation as input")
    messages = list(stored) if isinstance(stored, list) else [*before, {"role": "user", "content": question}]
    calls = message_of(outcome).get("tool_calls")
    if outcome.answer or calls:
        called = {"tool_calls": calls} if calls else {}
        messages.append({"role": "assistant", "content": outcome.answer or None, **called})
    return record.decision, messages


#: most references to items in one request: each is read from the store
_MOST_REFERENCES: Final = 256


async def _put_items(request: Request, body: ResponseBody) -> None:
    """Replace references by the items of earlier responses. Raises Unsupported."""
    items = body.input if isinstance(body.input, list) else []
    places = [place for place, item in enumerate(items) if is_reference(item)]
    tenant = caller_of(request).tenant or "default"
    for place in places:
        key = str(items[place].get("id"))
        item: dict[str, Any] | None = {"type": "reasoning"} if key.startswith("rs_") else None
        for decision_id in decisions_of_item(key) if item is None and len(places) <= _MOST_REFERENCES else ():
            with suppress(NotFound):
                record = await record_of(request, decision_id, tenant=tenant)
                output = stored_response(request, record)["output"] if record.decision.query.text else []  # erased
                item = next((each for each in output if each["id"] == key), item)
        if item is None:
            message = f"{key!r:.80} is no item of a stored response of yours"
            if len(places) > _MOST_REFERENCES:
                message = f"{len(places)} items are references, and {_MOST_REFERENCES} are read"
            remedy = "send the item itself in place of the reference"
            raise Unsupported(message, field=f"input.{place}.id", remedy=remedy)
        items[place] = item


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
    session, earlier = None if body.store is False else own, None
    if body.previous_response_id is not None:
        decision, before = await messages_before(request, body.previous_response_id)
        session, known = decision.query.session or decision.id, decision.query.request.get(CONVERSATION)
        if isinstance(known, str) and decision.query.api_key == caller_of(request).key:
            earlier = known, bool(body.instructions) + len(before) - 1  # all that came before its answer
    await _put_items(request, body)
    (sent, ignored), passed = body.sent(before), bool(router_of(request).service.passing)
    own_words = int(bool(body.instructions))
    skip = own_words + len(before)
    chat, facts = read_chat(sent, at="input", skip=skip, passed=passed, ignored=ignored), body.facts
    if body.store is not False:
        messages: Any = chat.sent["messages"]
        facts |= said_of(messages[own_words:])
    return await answered(
        request,
        body,
        chat=chat,
        key=own,
        whole=response,
        stream=ResponseStream,
        session=session,
        earlier=earlier,
        facts=facts if key is not None else {**facts, NAMED_ID: False},  # the id is ours
    )


@endpoints.get(
    _RESPONSE, summary="Read a response", responses={**ERRORS, 200: described("The response.", ResponseReply)}
)
async def read(response_id: ResponsePath, request: Request) -> Response:
    """Read a response, whether there is an answer yet or not.

    404 for one that was never made, that is another tenant's, or that was made with `store: false`. A decision that
    another endpoint made is shown as a response too.
    """
    record = await record_of(request, response_id)
    return JsonReply(stored_response(request, record), headers=headers(record.decision))


@endpoints.post(
    f"{_RESPONSE}/cancel",
    summary="Cancel a response",
    responses={**ERRORS, 200: described("The response as it is now.", ResponseReply)},
)
async def cancel(response_id: ResponsePath, request: Request) -> Response:
    """Cancel a response, whether or not its answer has begun.

    The response is `in_progress` while a worker has still to end it. If it has ended, it does not change.
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
    earlier: tuple[str, int] | None = None,
    facts: Mapping[str, Json] | None = None,
) -> Response:
    """The reply to a question: it is decided, and a worker answers it.

    chat: what it asks for. key: the id that the decision is to have. whole: writes the reply of (decision, outcome,
    base=URL of this service, saved=dollars or None). stream: the events of the reply to (decision, base=...). session:
    the conversation, where no header names one. earlier: hash and number of the messages that are stored already.
    facts: what else is kept of the request. Raises what is wrong before there is a decision. What fails later is
    replied so that clients do not ask again by themselves: they would have a second decision made for the question.
    """
    query = query_of(request, body, chat=chat, key=key, session=session, facts=facts or {})
    router, named = router_of(request), query.session if query.session != session else None
    begin, start = earlier or (body_hash([query.tenant, query.api_key, named]), 0)
    conversation, calls = hashed(chat.sent["messages"], begin=begin, start=start)
    if CHAT_HASH in query.request:
        query = replace(query, request={**query.request, CONVERSATION: conversation})
    with router.answers.place(query):
        decision, is_own = await _decided(request, query, chat=chat, calls=calls)
        settings, base = router.settings, str(request.base_url)
        limit_s = max(settings.server.answer_wait_s, settings.budget.seconds + STREAM_WAIT_S)
        try:
            answer = await asked(request, decision, live=bool(body.stream), limit_s=limit_s, is_own=is_own)
        except RagBanditError as error:
            return _failed_reply(request, decision, error)
    if body.stream:
        events = _streamed(answer, stream=partial(stream, base=base))
        return EventStream(events, answer=answer, refused=lambda error: _failed_reply(request, answer.decision, error))
    try:
        (outcome,) = [event async for group in _events(answer) for event in group if isinstance(event, Outcome)]
    except RagBanditError as error:
        return _failed_reply(request, answer.decision, error)
    finally:
        answer.forget()
    decision, saved = answer.decision, router.savings.of(outcome.cost)
    return JsonReply(whole(decision, outcome, base=base, saved=saved), headers=headers(decision))


async def _decided(request: Request, query: Query, *, chat: Chat, calls: str | None) -> tuple[Decision, bool]:
    """The decision of a question, and whether nobody but this request may ask for its answer.

    calls: the key of the calls whose results it brings.
    """
    known = None if calls is None else await _next_turn(request, query, calls=calls)
    if isinstance(known, Decision):
        return known, False
    asks = await paced(request, known or query)
    rewrite = router_of(request).conversations.submit(chat.turns, query=asks)
    asks = await awaited(request, rewrite, what="Idempotency-Key")
    try:
        decision, _ = await decide(request, asks, run_by="worker")
    except Conflict as error:
        if error.field != RESULTS:
            raise
        return await _decided(request, query, chat=chat, calls=calls)  # another request has taken the results
    return decision, query.id is None or query.request.get(NAMED_ID) is False


async def _next_turn(request: Request, query: Query, *, calls: str) -> Query | Decision | None:
    """The query as the next turn of the loop that it brings results for, by the arm that asked for them.

    The turn itself if the same request came before. None if no loop is found, the loop had too many turns or took too
    long, or its arm cannot answer, or the caller may not have it: the query gets a draw. Raises StoreError.
    """
    router, settings, known = router_of(request), router_of(request).settings.conversation, query.request
    previous, since = known.get("previous_response_id"), time.time() - settings.tool_turns_s
    find = partial(next_turn, router.database, calls, query=query, since=since, previous=previous)
    found = await reads_of(request).run(find)
    if found is None:
        return None
    turn = (
        found if isinstance(found, ToolTurn) else (await reads_of(request).run(lambda: router.decision(found))).decision
    )
    if query.arms is not None and turn.arm not in query.arms:
        return None
    if isinstance(turn, Decision):
        return turn
    passing = router.service.passing
    if (
        turn.number > settings.tool_turns
        or turn.arm not in passing
        or lacks_of(query, arms=(turn.arm,), passing=passing)
    ):
        return None
    return replace(query, arms=(turn.arm,), forced=True, request={**known, TOOL_TURN: turn.facts})


async def _events(answer: PendingAnswer) -> AsyncIterator[list[AnswerEvent]]:
    """The events of an answer, its outcome last. Raises the error that the reply is to be; CallerGone."""
    group = list[AnswerEvent]()
    try:
        async with aclosing(answer.events()) as events:  # type: ignore[type-var] # a generator
            async for group in events:
                fault = fault_of(answer.decision, group[-1]) if group and isinstance(group[-1], Outcome) else None
                if fault is not None:
                    raise fault
                yield group
    except TimeoutError:
        remedy = f"ask for the answer in a while: GET /v1/decisions/{answer.decision.id}"
        raise NotReady("the service is shutting down; the decision stands", remedy=remedy) from None
    if not group or not isinstance(group[-1], Outcome):
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
            async for group in events:
                if reply.decision is not answer.decision:
                    reply = stream(answer.decision)
                if not group and not has_begun and time.monotonic() < begin_at:
                    continue
                if data := b"".join(_parts(reply, group, savings=savings)):
                    has_begun = True
                    yield data
    except CallerGone:
        raise
    except Exception as error:
        if not has_begun:
            raise
        for part in reply.failure(_error_in_stream(error, has_content=reply.has_begun)):
            yield part


def _parts(reply: ReplyStream, group: Sequence[AnswerEvent], *, savings: Savings) -> Iterator[bytes]:
    for event in group or (None,):
        yield from reply.end(event, saved=savings.of(event.cost)) if isinstance(event, Outcome) else reply.of(event)


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
