"""Endpoints of Open Responses: create a response, read it, cancel it."""

from typing import Annotated, Final

from fastapi import Path as PathParameter
from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import IdempotencyKey, caller_of, documented, reads_of, router_of
from ragbandit.router.api.openai.answering import answered
from ragbandit.router.api.openai.errors import RESPONSES
from ragbandit.router.api.openai.replies import ERRORS, STREAM, OpenAIErrorReply
from ragbandit.router.api.openai.responses.events import ResponseStream
from ragbandit.router.api.openai.responses.replies import ID_PREFIX, ResponseReply, response
from ragbandit.router.api.openai.responses.requests import ResponseBody, check_supported
from ragbandit.router.api.openai.responses.stored import record_of, stored_response, turns_before
from ragbandit.router.api.schemas.replies import headers
from ragbandit.router.api.schemas.requests import ID, KEY_HEADER, DecisionIdText, identity, plain_decision_id
from ragbandit.router.api.schemas.responses import JsonReply, described, error_body, error_reply
from ragbandit.router.serving.checks.fields import new_id
from ragbandit.shared.types import NAMED_ID, Message

_RESPONSE: Final = f"{RESPONSES}/{{response_id}}"

ResponsePath = Annotated[DecisionIdText, PathParameter(description="Id of the response.", json_schema_extra=ID)]

endpoints = documented("OpenAI")


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
    check_supported(body)
    key = identity(None, key=None if idempotency_key is None else plain_decision_id(idempotency_key), field=KEY_HEADER)
    own, turns = key or f"{ID_PREFIX}{new_id()}", body.turns
    session: str | None = None if body.store is False else own
    if body.previous_response_id is not None:
        tenant = caller_of(request).tenant or "default"
        session, before = await turns_before(request, body.previous_response_id, tenant=tenant)
        turns = (*before, *turns)
    if body.instructions:
        turns = (Message(role="system", text=body.instructions), *turns)
    return await answered(
        request,
        body,
        turns=turns,
        key=own,
        named=key is not None,
        whole=response,
        stream=ResponseStream,
        session=session,
        facts=body.facts if key is not None else {**body.facts, NAMED_ID: False},  # the id is ours
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


@endpoints.delete(_RESPONSE, include_in_schema=False)
async def delete(response_id: ResponsePath, request: Request) -> Response:  # noqa: ARG001 # the same for every id
    """Say who erases."""
    remedy = "the operator erases its texts: ragbandit data erase --decision ID"
    body = error_body("METHOD_NOT_ALLOWED", "what is learned rests on decisions: none is deleted here", remedy=remedy)
    return error_reply(request.scope, 405, body, headers={"Allow": "GET"})
