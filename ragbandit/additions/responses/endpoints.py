"""The endpoints of responses, and their door."""

from typing import Annotated, Final

from fastapi import HTTPException, Path as PathParameter, Request
from fastapi.responses import Response

from ragbandit.additions.responses.errors import RESPONSES, WebSocketUnsupported, response_error, speaks_responses
from ragbandit.additions.responses.foreign_form import completion_of_response
from ragbandit.additions.responses.models import codex_models
from ragbandit.additions.responses.response_stream import undecided_failure
from ragbandit.additions.responses.responses import ResponseBody, ResponseReply
from ragbandit.additions.responses.stored_responses import Responses, response_record, stored_response
from ragbandit.router.api.dependencies import IdempotencyKey, reads_of, router_of
from ragbandit.router.api.door import Door
from ragbandit.router.api.openai import replies
from ragbandit.router.api.openai.chat_exchange import EVENTS, ChatExchange
from ragbandit.router.api.openai.errors import ERRORS, OpenAIErrorReply, error_in_reply
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import ID, DecisionIdText
from ragbandit.router.api.schemas.responses import JsonReply, decision_headers, reply_description
from ragbandit.router.api.security.rules import APP, CHAT
from ragbandit.router.serving.abilities import ContextExceeded

endpoints = Endpoints("OpenAI", errors=ERRORS, any_parameter=True)
_RESPONSE: Final = f"{RESPONSES}/{{response_id}}"

ResponsePath = Annotated[DecisionIdText, PathParameter(description="Id of the response.", json_schema_extra=ID)]


@endpoints.post(
    RESPONSES,
    rule=CHAT,
    summary="Create a response",
    responses={
        200: reply_description("The response; with `stream` its events.", ResponseReply) | {"content": replies.STREAM},
        504: {"model": OpenAIErrorReply},
    },
)
async def create(body: ResponseBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Answer the last message of a conversation: an arm is drawn, and a worker runs it.

    Made for clients of Open Responses (docs/responses.md). The id of the response is the id of the decision; use it to
    send feedback.
    """
    door = Responses()
    question = await door.read(request, body, key=idempotency_key)
    try:
        return await ChatExchange(door, request, question).reply()
    except ContextExceeded as error:
        if not question.streamed:
            raise
        return Response(undecided_failure(error_in_reply(error)), media_type=EVENTS)


@endpoints.get(RESPONSES, rule=CHAT, include_in_schema=False)
async def connect(request: Request) -> Response:
    """Refuse a WebSocket, which Codex requests first, with the status 426, after which Codex uses HTTP at once."""
    if "websocket" in request.headers.get("upgrade", "").lower():
        raise WebSocketUnsupported(remedy="POST /v1/responses, with `stream` for an answer in pieces")
    raise HTTPException(405, headers={"Allow": "POST"})


@endpoints.get(
    _RESPONSE,
    rule=APP,
    summary="Read a response",
    responses={200: reply_description("The response.", ResponseReply)},
)
async def read(response_id: ResponsePath, request: Request) -> Response:
    """Read a response, with or without its answer.

    404 if there is no such response, if it belongs to another tenant, or if it was made with `store: false`. Decisions
    of other endpoints are shown as responses too.
    """
    record = await response_record(request, response_id)
    return JsonReply(stored_response(request, record), headers=decision_headers(record.decision))


@endpoints.post(
    f"{_RESPONSE}/cancel",
    rule=APP,
    summary="Cancel a response",
    responses={200: reply_description("The response as it is now.", ResponseReply)},
)
async def cancel(response_id: ResponsePath, request: Request) -> Response:
    """Cancel a response, whether or not its answer has begun.

    The response stays `in_progress` until its worker stops. A response that has ended does not change.
    """
    await response_record(request, response_id)
    router = router_of(request)
    await reads_of(request).run(lambda: router.cancel(response_id))
    return JsonReply(stored_response(request, await response_record(request, response_id)))


DOOR: Final = Door(
    place=40,
    endpoints=(endpoints,),
    schemas=("ragbandit.additions.responses.responses",),
    speaks=speaks_responses,
    error=response_error,
    models=codex_models,
    base="/v1",
    in_chat_form=completion_of_response,
    instead={
        r"responses/compact": "shorten the conversation in the client, and send it by POST /v1/responses",
        r"responses/[^/]+/input_items": "GET /v1/decisions/{id} has the question, GET /v1/responses/{id} the answer",
        r"assistants|threads|conversations": "POST /v1/responses, with `previous_response_id` for a further turn",
    },
)
