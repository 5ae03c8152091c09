"""Requests for a response: what of them becomes the conversation of a query, and what is refused."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.api.openai.messages import turns_of
from ragbandit.router.api.openai.requests import OpenAIBody, configured, message_schema
from ragbandit.router.api.schemas.requests import ANY_TEXT, ID, TEXT, limits
from ragbandit.router.api.schemas.shape_errors import wanted
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Json, Message

_ROLES: Final = ("user", "assistant", "system", "developer")
_ITEM: Final = message_schema(roles=_ROLES, parts=("input_text", "output_text"), type={"enum": ["message"]})
#: items that a client sends back from a conversation with tools
_PASSED_OVER: Final = ("function_call", "function_call_output", "reasoning")
_NO_TOOLS: Final = "the arms call no tools of the caller"


class ResponseBody(OpenAIBody):
    """A response to be made. Parameters of OpenAI's that are not named here are ignored, and recorded."""

    model_config = configured(model="auto", input="Who wrote Dracula?")
    READ: ClassVar[frozenset[str]] = OpenAIBody.READ | {
        *("input", "instructions", "previous_response_id", "store", "text", "tool_choice", "background")
    }

    # That the last message of user and assistant must be the user's is in no schema.
    input: Annotated[
        Annotated[str, limits(TEXT)] | Annotated[list[Annotated[dict[str, Any], limits(_ITEM)]], limits(minItems=1)],
        wanted("text or a list of items"),
    ]
    """The question, or the conversation: messages with `role` and `content`, which is text or a list of parts of the
    types `input_text` and `output_text`. Calls of functions, their outputs and reasoning are passed over, since no arm
    reads them; items of other types are refused."""
    instructions: Annotated[str | None, limits(ANY_TEXT)] = None
    """Words of the system, for this response alone."""
    previous_response_id: Annotated[str | None, limits(ID)] = None
    """The response that this one goes on from: its conversation and its answer come before `input`. 404 where there is
    none that the caller may read, or it was made with `store: false`."""
    store: bool | None = None
    """false: the response cannot be read by its id, nor gone on from. The decision is kept all the same."""
    conversation: Annotated[str | dict[str, Any] | None, limits(enum=[None])] = None
    """null: `previous_response_id` and the header `X-RagBandit-Session-Id` are the conversation."""
    background: Annotated[bool | None, limits(enum=[False, None])] = None
    """false; `POST /v1/answer?wait_s=0` does not wait for an answer."""
    tools: list[Any] | None = None
    """Ignored, unless `tool_choice` asks for a call: refused."""
    tool_choice: Annotated[str | dict[str, Any] | None, limits(enum=["none", "auto", None])] = None
    """`none` or `auto`."""
    text: Annotated[
        dict[str, Any] | None,
        limits(properties={"format": {"type": "object", "properties": {"type": {"enum": ["text"]}}}}),
    ] = None
    """{"format": {"type": "text"}}."""
    prompt: Annotated[dict[str, Any] | None, limits(enum=[None])] = None
    """null; there are no templates of prompts here."""
    top_logprobs: Annotated[int | None, limits(enum=[0, None])] = None
    """0."""

    @property
    def facts(self) -> dict[str, Json]:
        """What is kept of the request for its response, beside what is kept of every one."""
        return {
            "surface": "responses",
            "metadata": dict(self.metadata or {}),
            "previous_response_id": self.previous_response_id,
            **({"instructions": True} if self.instructions else {}),
            **({"store": False} if self.store is False else {}),
        }

    @property
    def turns(self) -> tuple[Message, ...]:
        """What `input` says, in order. Raises InvalidInput naming the item."""
        if isinstance(self.input, str):
            return turns_of([{"role": "user", "content": self.input}], field="input")
        return turns_of([_message(item, at=f"input.{index}") for index, item in enumerate(self.input)], field="input")


def _message(item: Mapping[str, Any], *, at: str) -> Mapping[str, Any]:
    kind, role = item.get("type") or "message", item.get("role")
    if kind in _PASSED_OVER:
        return {"role": "tool"}
    if kind != "message":
        message = f"the arms read messages alone, not {kind!s:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send items of the type message")
    if role not in _ROLES:
        remedy = f"use {', '.join(_ROLES)}"
        raise InvalidInput(f"{role!r:.80} is no role of a message", field=f"{at}.role", remedy=remedy)
    return item


def check_supported(body: ResponseBody) -> None:
    """Raises Unsupported for a parameter that asks for another response than we can give."""
    form, included = (body.text or {}).get("format") or {"type": "text"}, (body.model_extra or {}).get("include")
    is_text = isinstance(form, Mapping) and form.get("type") == "text"
    logprobs = isinstance(included, list) and "message.output_text.logprobs" in included
    wrong: dict[str, tuple[object, str, str]] = {
        "conversation": (body.conversation, "responses are their own conversations", "send previous_response_id"),
        "prompt": (body.prompt, "there are no templates of prompts here", "send input and instructions"),
        "background": (body.background, "a response is waited for", "send POST /v1/answer?wait_s=0, which is not"),
        "tool_choice": (body.tool_choice not in (None, "none", "auto"), _NO_TOOLS, "leave tool_choice out"),
        "text.format": (not is_text, "answers are not made to a format", "leave it out, and read the answer as text"),
        "top_logprobs": (body.top_logprobs or logprobs, "answers have no log probabilities", "leave them out"),
    }
    for field, (sent, message, remedy) in wrong.items():
        if sent:
            raise Unsupported(message, field=field, remedy=remedy)
