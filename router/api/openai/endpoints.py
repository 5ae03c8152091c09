from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path as PathParameter, Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import IdempotencyKey, caller_of, router_of
from ragbandit.router.api.openai import errors, replies, requests
from ragbandit.router.api.openai.chat_exchange import ChatDoor, ChatExchange
from ragbandit.router.api.openai.chats import read_chat
from ragbandit.router.api.reading import reads_body
from ragbandit.router.api.request_state import request_state
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import id_in_header
from ragbandit.router.api.schemas.responses import JsonReply, reply_description
from ragbandit.router.api.security.rules import APP, CHAT, TEXTS
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import Conversation, Decision, Outcome, Sent

endpoints = Endpoints("OpenAI", errors=errors.ERRORS, any_parameter=True)


@endpoints.get(
    "/v1/models",
    rule=APP,
    summary="List the models",
    responses={200: reply_description("All models.", replies.ModelList)},
)
async def models(request: Request) -> Response:
    """List the models: `auto` lets the policy choose the arm, `auto:<price>` does so at a price of the setting
    `cost_weights`, and `arm/<name>` is an arm that our workers run. Names in `server.model_aliases` without a pattern
    are listed, too.
    """
    models = requests.model_list(router_of(request), caller=caller_of(request))
    return _models_reply(request, models)


@endpoints.get(
    "/v1/models/{model:path}",
    rule=APP,
    summary="Read one model",
    responses={200: reply_description("The model.", replies.ListedModel)},
)
async def model(
    model: Annotated[str, PathParameter(description="The model's id, as `auto` or `arm/single_step`.")],
    request: Request,
) -> Response:
    """Read the model of this name; 404 with the code `model_not_found` if there is no such model."""
    named = requests.named_model(model, router=router_of(request), caller=caller_of(request))
    return _models_reply(request, named)


def _models_reply(request: Request, models: replies.ListedModel | replies.ModelList) -> Response:
    form = request_state(request.scope).models
    return JsonReply(models if form is None else form(models))


@dataclass(frozen=True, kw_only=True, slots=True)
class Completions(ChatDoor[requests.ChatBody]):
    #: options of a streamed reply; `ChatStream` describes them
    include_usage: bool = False
    open_webui: bool = False

    def whole_reply(self, decision: Decision, outcome: Outcome, *, base: str, saved: float | None) -> dict[str, Any]:
        return replies.completion(decision, outcome, base=base, saved=saved)

    def stream(self, decision: Decision, *, base: str) -> replies.ChatStream:
        return replies.ChatStream(decision, base=base, include_usage=self.include_usage, open_webui=self.open_webui)

    @reads_body
    def read(self, request: Request, body: requests.ChatBody, *, key: str | None) -> requests.ChatQuestion:
        """Raises as `chat_question`, and Unsupported."""
        decision_id = id_in_header(key)
        chat = read_chat(body.sent_fields, passed=bool(router_of(request).service.passing))
        if body.n is not None and body.n != 1:
            message = f"{body.n} answers are asked for, but every chat gets one"
            raise errors.Unsupported(message, field="n", remedy="leave n out")
        conversation = Conversation(fields=chat.fields, encoding=chat.encoding)
        sent = Sent(surface="openai", ignored=body.ignored)
        return requests.chat_question(
            request, body, chat=chat, conversation=conversation, decision_id=decision_id, sent=sent
        )


@endpoints.post(
    "/v1/chat/completions",
    rule=CHAT,
    summary="Answer a chat message",
    responses={
        200: reply_description("The answer; with `stream` in pieces.", replies.ChatCompletion)
        | {"content": replies.STREAM},
        504: {"model": errors.OpenAIErrorReply},
    },
)
async def chat(body: requests.ChatBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Answer the last message of a conversation: an arm is drawn, and a worker runs it.

    Made for clients of OpenAI's interface (docs/openai.md). The reply's `id` is "chatcmpl-" and the id of the decision;
    use that id to send feedback.
    """
    include_usage = bool((body.stream_options or {}).get("include_usage"))
    door = Completions(include_usage=include_usage, open_webui=_is_from_open_webui(request))
    question = await door.read(request, body, key=idempotency_key)
    return await ChatExchange(door, request, question).reply()


def _is_from_open_webui(request: Request) -> bool:
    """Whether Open WebUI sent the request: it adds headers that begin with its name."""
    for name, _ in request.scope["headers"]:  # noqa: SIM110 - a generator is called for each header
        if name.startswith(b"x-openwebui-"):
            return True
    return False


@endpoints.post("/v1/completions", rule=TEXTS, include_in_schema=False)
async def completions(_request: Request) -> Response:
    """Refuse the older completions, which some clients use by default, and point to chat completions."""
    raise NotFound(
        "the older completions are not served here",
        remedy="use POST /v1/chat/completions; in LlamaIndex's OpenAILike set is_chat_model=True",
    )
