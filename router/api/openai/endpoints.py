"""OpenAI's endpoints: models, chat completions, Open Responses."""

from functools import partial
from typing import Annotated, Final

from fastapi import Path as PathParameter, Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import IdempotencyKey, caller_of, documented, reads_of, router_of
from ragbandit.router.api.endpoints.decisions import plain_body
from ragbandit.router.api.openai import replies
from ragbandit.router.api.openai.exchange import ChatExchange
from ragbandit.router.api.openai.requests import ChatBody, choice_of, completion_question, model_list, named_model
from ragbandit.router.api.openai.response_stream import ResponseStream
from ragbandit.router.api.openai.responses import ResponseBody, ResponseReply, response
from ragbandit.router.api.openai.stored_responses import record_of, response_question, stored_response
from ragbandit.router.api.schemas.replies import headers
from ragbandit.router.api.schemas.requests import ID, KEY_HEADER, DecisionIdText
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.shared.errors import NotFound

endpoints = documented("OpenAI", any_parameter=True)


@endpoints.get(
    "/v1/models",
    summary="List the models",
    responses={**replies.ERRORS, 200: described("All models.", replies.ModelList)},
)
async def models(request: Request) -> Response:
    """List the models: `auto` lets the policy choose the arm, `auto:<price>` does so at a price of the setting
    `cost_weights`, and `arm/<name>` is an arm that our workers run.
    """
    return JsonReply(model_list(router_of(request), caller=caller_of(request)))


@endpoints.get(
    "/v1/models/{model:path}",
    summary="Read one model",
    responses={**replies.ERRORS, 200: described("The model.", replies.Model)},
)
async def model(
    model: Annotated[str, PathParameter(description="Its id, for example `auto` or `arm/single_step`.")],
    request: Request,
) -> Response:
    """Read the model of this name; 404 with the code `model_not_found` if there is none."""
    choice_of(model, router=router_of(request), field=None)
    return JsonReply(named_model(model))


@endpoints.post(
    "/v1/chat/completions",
    summary="Answer a chat message",
    responses={
        **replies.ERRORS,
        200: described("The answer; with `stream` in pieces.", replies.ChatCompletion) | {"content": replies.STREAM},
        504: {"model": replies.OpenAIErrorReply},
    },
)
async def chat(body: ChatBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Answer the last message of a conversation: an arm is drawn, and a worker runs it.

    Made for clients of OpenAI's interface (docs/openai.md). The reply's `id` is "chatcmpl-" and the id of the decision;
    use that id to send feedback.
    """
    question = completion_question(request, body, key=idempotency_key)
    open_webui = any(name.startswith("x-openwebui-") for name in request.headers)
    stream = partial(replies.ChatStream, include_usage=body.include_usage, open_webui=open_webui)
    return await ChatExchange(request, question, whole=replies.completion, stream=stream).reply()


async def chat_directly(request: Request) -> Response | None:
    """The reply to a simple chat completion; None to hand the request to FastAPI (see `route_directly`)."""
    body = await plain_body(request, ChatBody)
    return None if body is None else await chat(body, request, request.headers.get(KEY_HEADER))


async def create_directly(request: Request) -> Response | None:
    """The reply to a simple request for a response; None to hand the request to FastAPI (see `route_directly`)."""
    body = await plain_body(request, ResponseBody)
    return None if body is None else await create(body, request, request.headers.get(KEY_HEADER))


@endpoints.post("/v1/completions", include_in_schema=False)
async def completions(_request: Request) -> Response:
    """Refuse the older completions, and point to chat completions: some clients use the older ones by default."""
    raise NotFound(
        "the older completions are not served here, chat completions are",
        remedy="POST /v1/chat/completions; in LlamaIndex's OpenAILike set is_chat_model=True",
    )


_RESPONSE: Final = f"{replies.RESPONSES}/{{response_id}}"

ResponsePath = Annotated[DecisionIdText, PathParameter(description="Id of the response.", json_schema_extra=ID)]


@endpoints.post(
    replies.RESPONSES,
    summary="Create a response",
    responses={
        **replies.ERRORS,
        200: described("The response; with `stream` its events.", ResponseReply) | {"content": replies.STREAM},
        504: {"model": replies.OpenAIErrorReply},
    },
)
async def create(body: ResponseBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Answer the last message of a conversation: an arm is drawn, and a worker runs it.

    Made for clients of Open Responses (docs/openai.md). The id of the response is the id of the decision; use it to
    send feedback.
    """
    question = await response_question(request, body, key=idempotency_key)
    return await ChatExchange(request, question, whole=response, stream=ResponseStream).reply()


@endpoints.get(
    _RESPONSE, summary="Read a response", responses={**replies.ERRORS, 200: described("The response.", ResponseReply)}
)
async def read(response_id: ResponsePath, request: Request) -> Response:
    """Read a response, with or without its answer.

    404 if there is no such response, if it belongs to another tenant, or if it was made with `store: false`. Decisions
    of other endpoints are shown as responses too.
    """
    record = await record_of(request, response_id)
    return JsonReply(stored_response(request, record), headers=headers(record.decision))


@endpoints.post(
    f"{_RESPONSE}/cancel",
    summary="Cancel a response",
    responses={**replies.ERRORS, 200: described("The response as it is now.", ResponseReply)},
)
async def cancel(response_id: ResponsePath, request: Request) -> Response:
    """Cancel a response, whether or not its answer has begun.

    The response stays `in_progress` until its worker stops. A response that has ended does not change.
    """
    await record_of(request, response_id)
    router = router_of(request)
    await reads_of(request).run(lambda: router.cancel(response_id))
    return JsonReply(stored_response(request, await record_of(request, response_id)))
