"""OpenAI's endpoints: models, chat completions, and a word for the older completions that we do not serve."""

from functools import partial
from typing import Annotated

from fastapi import Path as PathParameter
from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import IdempotencyKey, caller_of, documented, router_of
from ragbandit.router.api.openai.answering import answered
from ragbandit.router.api.openai.chunks import ChatStream
from ragbandit.router.api.openai.messages import turns_of
from ragbandit.router.api.openai.models import model_list, model_of
from ragbandit.router.api.openai.replies import (
    ERRORS,
    STREAM,
    ChatCompletion,
    Model,
    ModelList,
    OpenAIErrorReply,
    completion,
)
from ragbandit.router.api.openai.requests import ChatBody, check_supported
from ragbandit.router.api.schemas.requests import KEY_HEADER, identity, plain_decision_id
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.shared.errors import NotFound

endpoints = documented("OpenAI")


@endpoints.get(
    "/v1/models",
    summary="List the models",
    responses={**ERRORS, 200: described("All models.", ModelList)},
)
async def models(request: Request) -> Response:
    """List the models: `auto`, by which the policy chooses; `auto:<price>`, at each of the setting `prices`; and
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
    return JsonReply(model_of(model, router=router_of(request)))


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
    sent = None if idempotency_key is None else plain_decision_id(idempotency_key)
    key, turns = identity(None, key=sent, field=KEY_HEADER), turns_of(body.messages)
    check_supported(body)
    open_webui = any(name.startswith("x-openwebui-") for name in request.headers)
    stream = partial(ChatStream, include_usage=body.include_usage, open_webui=open_webui)
    return await answered(request, body, turns=turns, key=key, named=key is not None, whole=completion, stream=stream)


@endpoints.post("/v1/completions", include_in_schema=False)
async def completions(_request: Request) -> Response:
    """Say where completions are."""
    raise NotFound(
        "the older completions are not served here, chat completions are",
        remedy="POST /v1/chat/completions; in LlamaIndex's OpenAILike set is_chat_model=True",
    )
