import json
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import Request
from fastapi.responses import Response

from ragbandit.additions.anthropic.errors import ERRORS, VERSION, anthropic_error, request_id_header, speaks_anthropic
from ragbandit.additions.anthropic.message_stream import MessageStream, message_reply
from ragbandit.additions.anthropic.messages.in_chats import in_chat_form
from ragbandit.additions.anthropic.messages.requests import DIALECT, NEED, chat_of
from ragbandit.additions.anthropic.models import anthropic_models
from ragbandit.router.api.dependencies import IdempotencyKey, router_of
from ragbandit.router.api.door import Door
from ragbandit.router.api.openai import replies
from ragbandit.router.api.openai.chat_exchange import ChatDoor, ChatExchange
from ragbandit.router.api.openai.chats import OWN, message_schema, read_chat, storable_field
from ragbandit.router.api.openai.requests import LONGEST_USER, ChatQuestion, OpenAIBody, chat_question, configured
from ragbandit.router.api.reading import reads_body
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import id_in_header, schema_limits
from ragbandit.router.api.schemas.responses import JsonReply, object_description
from ragbandit.router.api.security.rules import CHAT, TEXTS
from ragbandit.router.serving.checks.questions import checked_session, checked_text
from ragbandit.shared.types import Conversation, Decision, Json, Outcome, Sent
from ragbandit.shared.types.encodings import Encoding

endpoints = Endpoints("Anthropic", errors=ERRORS, any_parameter=True)
_MESSAGE: Final = message_schema(roles=("user", "assistant"), texts=("text",))
_USER_ID: Final = "metadata.user_id"
#: client headers that are passed on to Anthropic's servers
_PASSED_HEADERS: Final = (VERSION, "anthropic-beta")


class MessagesBody(OpenAIBody):
    """A request for a message. Arms whose generator is `anthropic` also get parameters that are not listed here."""

    model_config = configured(
        model="auto", max_tokens=1024, messages=[{"role": "user", "content": "Who wrote Dracula?"}]
    )

    messages: Annotated[list[Annotated[dict[str, Any], schema_limits(_MESSAGE)]], schema_limits(minItems=1)]
    """The conversation: objects with `role` and `content`. `content` is text or a list of blocks: `text`, `image`,
    `document`, `search_result`, `tool_use`, `tool_result`, `thinking`. Other blocks, and tools that Anthropic runs
    itself, need an arm whose generator is `anthropic`."""

    def fields(self) -> tuple[dict[str, Any], Encoding]:
        """Returns (the parameters for a model, their JSON). Raises InvalidInput for values that JSON cannot express."""
        sent = {name: value for name, value in self.sent_fields.items() if name not in OWN}
        checked = {name: storable_field(value, field=name) for name, value in sent.items()}
        encoding = Encoding.joined(one for _, one in checked.values())
        return {name: value for name, (value, _) in checked.items()}, encoding


class Messages(ChatDoor[MessagesBody]):
    """The door of Anthropic's Messages."""

    def whole_reply(self, decision: Decision, outcome: Outcome, *, base: str, saved: float | None) -> dict[str, Any]:
        return message_reply(decision, outcome, base=base, saved=saved)

    def stream(self, decision: Decision, *, base: str) -> MessageStream:
        return MessageStream(decision, base=base)

    @reads_body
    def read(self, request: Request, body: MessagesBody, *, key: str | None) -> ChatQuestion:
        (fields, encoding), passed = body.fields(), bool(router_of(request).service.passing)
        sent, foreign = chat_of(fields, encoding, joined=True)
        others = {name: value for name, value in fields.items() if name not in ("messages", "system")}
        chat = read_chat(sent, passed=passed, others=others, encoding=encoding)
        user = self._user(body)
        if foreign:
            chat = replace(chat, sent=replace(chat.sent, needs=(*chat.sent.needs, NEED)))
        headers = {name: request.headers[name] for name in _PASSED_HEADERS if name in request.headers}
        # `read_chat` has made `max_tokens` a whole number.
        read = {"metadata": fields.get("metadata"), "max_tokens": chat.fields.get("max_tokens")}
        fields = {name: value for name, value in fields.items() if name not in read}
        fields |= {name: value for name, value in read.items() if value is not None}
        conversation = Conversation(fields=fields, dialect=DIALECT, headers=headers, encoding=encoding)
        return chat_question(
            request,
            body,
            chat=chat,
            conversation=conversation,
            decision_id=id_in_header(key),
            session=session_of(user or ""),
            sent=Sent(surface="anthropic", user=body.safety_identifier or user),
        )

    @reads_body
    def count_tokens(self, _request: Request, body: MessagesBody) -> Json:
        """Estimated number of tokens of a request. Raises InvalidInput."""
        fields, encoding = body.fields()
        return read_chat(chat_of(fields, encoding, joined=True)[0], passed=True, encoding=encoding).sent.tokens

    def _user(self, body: MessagesBody) -> str | None:
        """The user that a request names; None if it names none. Raises InvalidInput."""
        user: Any = body.user or (body.metadata or {}).get("user_id")
        return checked_text(user, field=_USER_ID, most=LONGEST_USER) if isinstance(user, str) and user else None


def session_of(user: str) -> str | None:
    """The session in a `user_id`: Claude Code's "user_..._session_<id>" or JSON with "session_id"; None if there is
    none.
    """
    try:
        session = str.strip(json.loads(user)["session_id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        _, is_named, last = user.rpartition("_session_")
        session = last.strip() if is_named else ""
    return checked_session(session, field=_USER_ID) if session else None


@endpoints.post(
    "/v1/messages",
    rule=CHAT,
    summary="Create a message",
    responses={200: object_description("The message; with `stream` its events.", **replies.STREAM)},
)
async def create(body: MessagesBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Answer the last message of a conversation: an arm is drawn, and a worker runs it.

    Made for clients of Anthropic's Messages (docs/anthropic.md). The reply's `id` is "msg_" and the id of the decision;
    use that id to send feedback.
    """
    door = Messages()
    question = await door.read(request, body, key=idempotency_key)
    return await ChatExchange(door, request, question).reply()


@endpoints.post(
    "/v1/messages/count_tokens",
    rule=TEXTS,
    summary="Count the tokens of a message",
    responses={200: object_description("`input_tokens`: an estimate.")},
)
async def count_tokens(body: MessagesBody, request: Request) -> Response:
    """Estimate the number of tokens of a request, in the same way as a decision. No model is called."""
    return JsonReply({"input_tokens": await Messages().count_tokens(request, body)})


DOOR: Final = Door(
    place=50,
    endpoints=(endpoints,),
    description="For clients of Anthropic's Messages, such as Claude Code.",
    schemas=(__name__,),
    speaks=speaks_anthropic,
    error=anthropic_error,
    models=anthropic_models,
    base="",
    in_chat_form=in_chat_form,
    headers=request_id_header,
    instead={
        r"responses/input_tokens": "POST /v1/messages/count_tokens estimates the tokens of a message",
        r"batch(es)?|messages/batches|chat/completions/batch": "send each request by POST /v1/chat/completions or POST "
        "/v1/messages",
        r"complete": "POST /v1/messages",
    },
)
