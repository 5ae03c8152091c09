"""Open Responses: /v1/responses in front of our decisions. A response is a decision and its outcome."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, NotRequired

from typing_extensions import TypedDict

from ragbandit.router.api.endpoints.streaming import PING, event_of
from ragbandit.router.api.openai.errors import Unsupported, error_in_reply, fault_of
from ragbandit.router.api.openai.replies import DONE, Facts, annotations_of, facts_of, model_name, urls_of, usage_of
from ragbandit.router.api.openai.requests import OpenAIBody, configured, message_schema, turns_of
from ragbandit.router.api.schemas.requests import ANY_TEXT, ID, TEXT, limits, wanted
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import CANCELLED, Decision, Json, Message, Outcome, StatusNote, TextPiece

ResponseStatus = Literal["completed", "in_progress", "incomplete", "failed", "cancelled"]


class ResponseReply(TypedDict):
    """A response, as the Open Responses specification has it; here is what differs from decision to decision.

    The other fields of the specification are constants, `temperature` and the like among them: arms have their own.
    """

    id: str
    """Id of the decision."""
    object: Literal["response"]
    """Kind of object."""
    created_at: int
    """When the decision was made, seconds since 1970."""
    completed_at: int | None
    """When the answer came, seconds since 1970; null where there is none."""
    status: ResponseStatus
    """`incomplete` where the budget ended the arm."""
    incomplete_details: dict[str, str] | None
    """{"reason": "max_output_tokens"} where it is incomplete; else null."""
    error: dict[str, str] | None
    """`code` and `message` where it failed; else null."""
    model: str
    """The arm that answers: `ragbandit/<arm>`."""
    previous_response_id: str | None
    """The response that this one goes on from; null for none."""
    instructions: str | None
    """Words of the system, as the arm saw them; null where `instructions` was not sent."""
    output: list[dict[str, Any]]
    """One message: its part `output_text` has the answer, and the passages that it saw as `annotations` of the type
    `url_citation`, each over the whole answer. [] while there is none, and where it failed."""
    usage: dict[str, Any] | None
    """Tokens over all of the arm's calls: `input_tokens`, `output_tokens`, `total_tokens`, and `saved` as of a chat
    completion; null while there is no answer."""
    metadata: dict[str, str]
    """As the request had it."""
    store: bool
    """false: this response cannot be read by its id."""
    safety_identifier: str | None
    """Who asks, as the request had it."""
    ragbandit: NotRequired[Facts]
    """The decision behind the answer; missing while there is none."""


#: of ids that are made here: LangChain knows by it that an id is that of a response
ID_PREFIX: Final = "resp_"
#: what the format wants, and no arm reads
_CONSTANTS: Final[dict[str, Any]] = {
    "text": {"format": {"type": "text"}},
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "truncation": "auto",
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "reasoning": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "background": False,
    "service_tier": "default",
    "prompt_cache_key": None,
}


def response(
    decision: Decision,
    outcome: Outcome | None,
    *,
    base: str,
    saved: float | None = None,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The response of a decision. base: URL of this service. error: why there will be no answer, as OpenAI has it."""
    fault = None if outcome is None else fault_of(decision, outcome)
    error = error if fault is None else error_in_reply(fault)
    status, request = _status(outcome, failed=error is not None), decision.query.request
    reply: dict[str, Any] = {
        "id": decision.id,
        "object": "response",
        "created_at": int(decision.made_at),
        "completed_at": int(outcome.made_at) if outcome is not None and status == "completed" else None,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "error": None if error is None else {"code": error["code"], "message": error["message"]},
        "model": model_name(decision),
        "previous_response_id": request.get("previous_response_id"),
        "instructions": _instructions(decision),
        "output": [],
        "usage": None,
        "metadata": request.get("metadata") or {},
        "store": request.get("store") is not False,
        "safety_identifier": request.get("user"),
        **_CONSTANTS,
    }
    if outcome is not None:
        reply["output"] = [] if fault else [message(decision, outcome, base=base)]
        reply["usage"] = _usage(outcome, saved=saved)
        reply["ragbandit"] = facts_of(decision, outcome, urls=urls_of(outcome, base=base))
    return reply


def message(decision: Decision, outcome: Outcome | None, *, base: str) -> dict[str, Any]:
    """The item of the answer; without an outcome that of one that has begun."""
    item: dict[str, Any] = {"type": "message", "id": item_id(decision), "role": "assistant"}
    if outcome is None:
        return item | {"status": "in_progress", "content": []}
    cited = annotations_of(outcome, urls=urls_of(outcome, base=base))
    flat = [{"type": "url_citation", **each["url_citation"]} for each in cited]
    status = "incomplete" if outcome.status == "exhausted" else "completed"
    return item | {"status": status, "content": [text_part(outcome.answer or "") | {"annotations": flat}]}


def item_id(decision: Decision) -> str:
    """The id of the item of the answer."""
    return f"msg_{decision.id.removeprefix(ID_PREFIX)}"


def text_part(text: str) -> dict[str, Any]:
    """A part of an item, without citations."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(outcome: Outcome | None, *, failed: bool) -> ResponseStatus:
    if outcome is None:
        return "failed" if failed else "in_progress"
    if failed:
        return "cancelled" if outcome.stop_reason == CANCELLED else "failed"
    return "incomplete" if outcome.status == "exhausted" else "completed"


def _instructions(decision: Decision) -> str | None:
    sent = decision.query.request.get("instructions")
    return next((each.text for each in decision.query.messages if sent and each.role == "system"), None)


def _usage(outcome: Outcome, *, saved: float | None) -> dict[str, Any]:
    usage = dict(usage_of(outcome.cost, saved=saved))
    for name, theirs in (("prompt", "input"), ("completion", "output")):
        usage[f"{theirs}_tokens"] = usage.pop(f"{name}_tokens")
        usage[f"{theirs}_tokens_details"] = usage.pop(f"{name}_tokens_details")
    return usage


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
    text: Annotated[
        dict[str, Any] | None,
        limits(properties={"format": {"type": "object", "properties": {"type": {"enum": ["text"]}}}}),
    ] = None
    """{"format": {"type": "text"}}."""
    prompt: Annotated[dict[str, Any] | None, limits(enum=[None])] = None
    """null; there are no templates of prompts here."""

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


def check_response(body: ResponseBody) -> None:
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


class ResponseStream:
    """The events of one response. base: URL of this service."""

    def __init__(self, decision: Decision, *, base: str) -> None:
        self._decision, self._base = decision, base
        self._number = 0
        #: pieces that were sent; None: the item has not begun
        self._text: str | None = None

    def begin(self) -> list[bytes]:
        """The first events, before there is an answer."""
        reply = response(self._decision, None, base=self._base)
        return [self._event("created", response=reply), self._event("in_progress", response=reply)]

    def of(self, event: TextPiece | StatusNote | None) -> list[bytes]:
        """The events for this one of the answer; None: nothing has come for a while."""
        if event is None:
            return [PING]
        if isinstance(event, StatusNote):
            return []
        begun = self._begun()
        self._text = (self._text or "") + event.text
        return [*begun, self._in_part("output_text.delta", delta=event.text, logprobs=[])]

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        """The last events of an answer that came."""
        begun = self._begun()
        if outcome.answer is None:
            outcome = replace(outcome, answer=self._text)
        reply = response(self._decision, outcome, base=self._base, saved=saved)
        (item,) = reply["output"]
        (part,) = item["content"]
        cited = [
            self._in_part("output_text.annotation.added", annotation_index=index, annotation=annotation)
            for index, annotation in enumerate(part["annotations"])
        ]
        return [
            *begun,
            *cited,
            self._in_part("output_text.done", text=part["text"], logprobs=[]),
            self._in_part("content_part.done", part=part),
            self._event("output_item.done", output_index=0, item=item),
            *self._last(reply),
        ]

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        """The last events of an answer that failed."""
        return self._last(response(self._decision, None, base=self._base, error=error))

    def _begun(self) -> list[bytes]:
        """The events before the first piece, once."""
        if self._text is not None:
            return []
        self._text = ""
        item = message(self._decision, None, base=self._base)
        return [
            self._event("output_item.added", output_index=0, item=item),
            self._in_part("content_part.added", part=text_part("")),
        ]

    def _last(self, reply: Mapping[str, Any]) -> list[bytes]:
        return [self._event(reply["status"], response=reply), DONE]

    def _in_part(self, kind: str, **fields: Any) -> bytes:
        where = {"item_id": item_id(self._decision), "output_index": 0, "content_index": 0}
        return self._event(kind, **where, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name, number = f"response.{kind}", self._number
        self._number += 1
        return event_of({"type": name, "sequence_number": number, **fields}, name=name)
