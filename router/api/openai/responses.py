"""Open Responses: /v1/responses in front of our decisions. A response is a decision and its outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NotRequired

from typing_extensions import TypedDict

from ragbandit.router.api.endpoints.streaming import PING, event_of
from ragbandit.router.api.openai.chats import CALL, ITEM, add_item, format_of, in_namespace, tools_of
from ragbandit.router.api.openai.replies import (
    DONE,
    Facts,
    Unsupported,
    annotations_of,
    error_in_reply,
    facts_of,
    fault_of,
    message_of,
    model_name,
    usage_of,
)
from ragbandit.router.api.openai.requests import SHORT_NAME, OpenAIBody, configured
from ragbandit.router.api.schemas.requests import ANY_TEXT, ID, TEXT, limits, wanted
from ragbandit.shared.openai_client import LOGPROBS
from ragbandit.shared.types import CANCELLED, Decision, DeltaPiece, Json, Outcome, StatusNote, TextPiece

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
    """The response that this one continues; null for none."""
    instructions: str | None
    """Words of the system, as the arm saw them; null where `instructions` was not sent."""
    output: list[dict[str, Any]]
    """A message, where there is text: its part `output_text` has the answer, and the passages that it saw as
    `annotations` of the type `url_citation`, each over the whole answer. A `function_call` for each call of a tool. []
    while there is none, and where it failed."""
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
#: the key of a query's `request` with the namespaces of its functions
NAMESPACES: Final = "namespaces"
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
        reply["output"] = [] if fault else output_of(decision, outcome, base=base)
        reply["usage"] = _usage(outcome, saved=saved)
        reply["ragbandit"] = facts_of(decision, outcome, base=base)
    return reply


def output_of(decision: Decision, outcome: Outcome, *, base: str) -> list[dict[str, Any]]:
    """The items of an answer: its text, and the calls of tools."""
    called = enumerate(message_of(outcome).get("tool_calls", ()))
    calls = [call_item(decision, call, place=place, status="completed") for place, call in called]
    return [*([message(decision, outcome, base=base)] if outcome.answer or not calls else []), *calls]


def call_item(decision: Decision, call: Mapping[str, Any], *, place: int, status: str) -> dict[str, Any]:
    """The item of a call of a tool. call: as chat completions have it. place: among the calls of the answer."""
    function, spaces = call.get("function", {}), decision.query.request.get(NAMESPACES)
    own = {"call_id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments") or ""}
    for space in spaces if isinstance(spaces, list) else ():
        if str(own["name"]).startswith(prefix := in_namespace("", space)):
            own |= {"name": own["name"].removeprefix(prefix), "namespace": space}
    # By the decision: models repeat the ids of their calls, and references name an item by its id.
    return {"type": CALL, "id": f"fc_{_item_key(decision)}_{place}", "status": status, **own}


def message(decision: Decision, outcome: Outcome | None, *, base: str) -> dict[str, Any]:
    """The item of the answer; without an outcome that of one that has begun."""
    item: dict[str, Any] = {"type": "message", "id": item_id(decision), "role": "assistant"}
    if outcome is None:
        return item | {"status": "in_progress", "content": []}
    cited = annotations_of(outcome, base=base)
    flat = [{"type": "url_citation", **each["url_citation"]} for each in cited]
    status = "incomplete" if outcome.status == "exhausted" else "completed"
    logprobs = (message_of(outcome).get(LOGPROBS) or {}).get("content") or []
    part = text_part(outcome.answer or "") | {"annotations": flat, "logprobs": logprobs}
    return item | {"status": status, "content": [part]}


def item_id(decision: Decision) -> str:
    """The id of the item of the answer."""
    return f"msg_{_item_key(decision)}"


def _item_key(decision: Decision) -> str:
    return decision.id.removeprefix(ID_PREFIX)


def decisions_of_item(key: str) -> list[str]:
    """Ids that the decision of an item with this id may have."""
    kind, _, rest = key.partition("_")
    rest = rest if kind == "msg" else rest.rpartition("_")[0]
    return [f"{ID_PREFIX}{rest}", rest]


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


_LOGPROBS: Final = "message.output_text.logprobs"


class ResponseBody(OpenAIBody):
    """A response to be made. Parameters of OpenAI's that are not named here are ignored, and recorded."""

    model_config = configured(model="auto", input="Who wrote Dracula?")

    # That the last message of user and assistant must be the user's is in no schema.
    input: Annotated[
        Annotated[str, limits(TEXT)] | Annotated[list[Annotated[dict[str, Any], limits(ITEM)]], limits(minItems=1)],
        wanted("text or a list of items"),
    ]
    """The question, or the conversation: messages with `role` and `content`, which is text or a list of parts of the
    types `input_text`, `input_image`, `input_file` and `output_text`; `function_call` and `function_call_output`, for
    arms that pass chats on; calls of other tools and their outputs, as those of functions; `item_reference`. Reasoning
    is passed over, items of other types are left out and named in `request.ignored`."""
    instructions: Annotated[str | None, limits(ANY_TEXT)] = None
    """Words of the system, for this response alone."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, for arms that pass chats on; tools that OpenAI runs itself are left out, and
    named in `request.ignored`."""
    previous_response_id: Annotated[str | None, limits(ID)] = None
    """The response that this one continues: its conversation and its answer come before `input`. 404 where there is
    none that the caller may read, or it was made with `store: false`."""
    store: bool | None = None
    """false: the response cannot be read by its id, nor gone on from. The decision is kept all the same."""
    conversation: Annotated[str | dict[str, Any] | None, limits(enum=[None])] = None
    """null: `previous_response_id` and the header `X-RagBandit-Session-Id` are the conversation."""
    background: Annotated[bool | None, limits(enum=[False, None])] = None
    """false; `POST /v1/answer?wait_s=0` does not wait for an answer."""
    text: Annotated[dict[str, Any] | None, limits(properties={"format": {"type": "object"}})] = None
    """`format`: the form of the answer, `text`, `json_object` or `json_schema`."""
    max_output_tokens: Annotated[int | None, limits(minimum=1)] = None
    """Tokens of the answer at most."""
    include: list[str] | None = None
    """`message.output_text.logprobs` asks for log-probabilities; others are passed over."""
    prompt: Annotated[dict[str, Any] | None, limits(enum=[None])] = None
    """null; there are no templates of prompts here."""

    @property
    def facts(self) -> dict[str, Json]:
        """Entries of the query's `request` that only responses have."""
        spaces = [str(tool.get("name")) for tool in self.tools or () if tool.get("type") == "namespace"]
        return {
            "surface": "responses",
            "metadata": dict(self.metadata or {}),
            "previous_response_id": self.previous_response_id,
            "instructions": True if self.instructions else None,
            "store": False if self.store is False else None,
            NAMESPACES: [name for name in spaces if SHORT_NAME.fullmatch(name)],
        }

    def sent(self, before: Sequence[dict[str, Any]] = ()) -> tuple[dict[str, Any], list[str]]:
        """The parameters as those of a chat completion, and the types of tools and items that are left out.

        before: the messages of the response that it continues. Raises InvalidInput, Unsupported naming the item.
        """
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages: list[dict[str, Any]] = [*system, *before]
        alone = {"role": "user", "content": self.input}
        items = enumerate([alone] if isinstance(self.input, str) else self.input)
        unread = [add_item(messages, item, at=f"input.{index}") for index, item in items]
        tools, ignored = tools_of(self.tools or (), choice=self.tool_choice)
        reasoning = (self.model_extra or {}).get("reasoning")
        wanted = {
            "response_format": format_of((self.text or {}).get("format")),
            "reasoning_effort": reasoning.get("effort") if isinstance(reasoning, Mapping) else None,
            "max_completion_tokens": self.max_output_tokens,
            "logprobs": True if self.top_logprobs or _LOGPROBS in (self.include or ()) else None,
        }
        own = {name: value for name, value in wanted.items() if value is not None}
        sent = {**dict(self), "reasoning": None, **tools, **own, "messages": messages}
        return sent, [*ignored, *(f"input.{kind}" for kind in unread if kind is not None)]


def check_response(body: ResponseBody) -> None:
    """Raises Unsupported for a parameter that asks for another response than any arm can give."""
    wrong: dict[str, tuple[object, str, str]] = {
        "conversation": (body.conversation, "responses are their own conversations", "send previous_response_id"),
        "prompt": (body.prompt, "there are no templates of prompts here", "send input and instructions"),
        "background": (body.background, "a response is waited for", "send POST /v1/answer?wait_s=0, which is not"),
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
        #: ids of the items that have begun; and index of a call -> the id of its item
        self._items: list[str] = []
        self._calls: dict[int, str] = {}

    def begin(self) -> list[bytes]:
        """The first events, before there is an answer."""
        reply = response(self._decision, None, base=self._base)
        return [self._event("created", response=reply), self._event("in_progress", response=reply)]

    def of(self, event: TextPiece | DeltaPiece | StatusNote | None) -> list[bytes]:
        """The events for this one of the answer; None: nothing has come for a while."""
        if event is None:
            return [PING]
        if isinstance(event, StatusNote):
            return []
        if isinstance(event, DeltaPiece):
            calls: Any = event.delta.get("tool_calls", ())
            return [part for call in calls for part in self._called(call)]
        begun = self._begun()
        self._text = (self._text or "") + event.text
        return [*begun, self._in_part("output_text.delta", delta=event.text, logprobs=[])]

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        """The last events of an answer that came."""
        if outcome.answer is None:
            outcome = replace(outcome, answer=self._text)
        # Every call has its item by now; text has its own unless there are calls alone.
        begun = self._begun() if outcome.answer or not self._calls else []
        reply = response(self._decision, outcome, base=self._base, saved=saved)
        last: list[bytes] = []
        for item in reply["output"]:
            last += self._ended_call(item) if item["type"] == CALL else self._ended_message(item)
        reply["output"].sort(key=lambda item: self._items.index(item["id"]))
        return [*begun, *last, *self._last(reply)]

    def _ended_message(self, item: Mapping[str, Any]) -> list[bytes]:
        (part,), added = item["content"], "output_text.annotation.added"
        return [
            *(self._in_part(added, annotation_index=n, annotation=one) for n, one in enumerate(part["annotations"])),
            self._in_part("output_text.done", text=part["text"], logprobs=part["logprobs"]),
            self._in_part("content_part.done", part=part),
            self._event("output_item.done", output_index=self._items.index(item["id"]), item=item),
        ]

    def _called(self, call: Mapping[str, Any]) -> list[bytes]:
        """The events of a piece of a call: its item, once its id is known, and its arguments."""
        index, events = int(call.get("index", 0)), list[bytes]()
        function = call.get("function") or {}
        if index not in self._calls:
            begun = {**call, "function": {**function, "arguments": ""}}
            item = call_item(self._decision, begun, place=index, status="in_progress")
            self._calls[index] = item["id"]
            events.append(self._added(item))
        if arguments := function.get("arguments"):
            where = self._where(self._calls[index])
            events.append(self._event("function_call_arguments.delta", **where, delta=arguments))
        return events

    def _ended_call(self, item: Mapping[str, Any]) -> list[bytes]:
        where = self._where(item["id"])
        done = self._event("function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"])
        return [done, self._event("output_item.done", output_index=where["output_index"], item=item)]

    def _added(self, item: Mapping[str, Any]) -> bytes:
        """An item begins."""
        self._items.append(item["id"])
        return self._event("output_item.added", output_index=len(self._items) - 1, item=item)

    def _where(self, item: str) -> dict[str, Any]:
        return {"item_id": item, "output_index": self._items.index(item)}

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        """The last events of an answer that failed."""
        return self._last(response(self._decision, None, base=self._base, error=error))

    def _begun(self) -> list[bytes]:
        """The events before the first piece, once."""
        if self._text is not None:
            return []
        self._text = ""
        added = self._added(message(self._decision, None, base=self._base))
        return [added, self._in_part("content_part.added", part=text_part(""))]

    def _last(self, reply: Mapping[str, Any]) -> list[bytes]:
        return [self._event(reply["status"], response=reply), DONE]

    def _in_part(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, **self._where(item_id(self._decision)), content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name, number = f"response.{kind}", self._number
        self._number += 1
        return event_of({"type": name, "sequence_number": number, **fields}, name=name)
