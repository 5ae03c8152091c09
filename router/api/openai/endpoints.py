"""OpenAI's endpoints: models, chat completions, Open Responses."""

from functools import partial
from typing import Annotated, Any, Final

from fastapi import Path as PathParameter, Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import IdempotencyKey, caller_of, documented, reads_of, router_of
from ragbandit.router.api.openai.answering import answered
from ragbandit.router.api.openai.chats import SAID, read_chat, said_of
from ragbandit.router.api.openai.errors import RESPONSES
from ragbandit.router.api.openai.replies import (
    ERRORS,
    STREAM,
    ChatCompletion,
    ChatStream,
    Model,
    ModelList,
    OpenAIErrorReply,
    completion,
    message_of,
)
from ragbandit.router.api.openai.requests import ChatBody, check_supported, choice_of, model_list, named_model
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
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.serving.checks.questions import ID_PATTERN, new_id
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.types import NAMED_ID

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
    key, asked = _own_id(idempotency_key), read_chat(body.sent)
    check_supported(body)
    open_webui = any(name.startswith("x-openwebui-") for name in request.headers)
    stream = partial(ChatStream, include_usage=body.include_usage, open_webui=open_webui)
    return await answered(request, body, chat=asked, key=key, named=key is not None, whole=completion, stream=stream)


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
        named=key is not None,
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
