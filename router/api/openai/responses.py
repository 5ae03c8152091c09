"""Open Responses: /v1/responses in front of our decisions. A response is a decision and its outcome."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

from typing_extensions import TypedDict

from ragbandit.router.api.openai.chats import CALL, ITEM, add_item, format_of, in_namespace, storable, tools_of
from ragbandit.router.api.openai.replies import (
    Facts,
    Unsupported,
    annotations_of,
    error_in_reply,
    facts_of,
    fault_of,
    finish_of,
    message_of,
    model_name,
    usage_of,
)
from ragbandit.router.api.openai.requests import SHORT_NAME, OpenAIBody, configured
from ragbandit.router.api.schemas.requests import ANY_TEXT, ID, TEXT, limits, wanted
from ragbandit.shared.message_parts import LOGPROBS
from ragbandit.shared.types import CANCELLED, Decision, Json, Outcome

ResponseStatus = Literal["completed", "in_progress", "incomplete", "failed", "cancelled"]


class ResponseReply(TypedDict):
    """A response, as the Open Responses specification has it.

    Parameters such as `temperature`, `tools` and `text` are repeated as the request sent them; if it did not, they have
    the default of the specification. Arms other than `model` do not read them.
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
    """`incomplete` if the budget, the model's limit of tokens or its filter ended the answer."""
    incomplete_details: dict[str, str] | None
    """{"reason": "max_output_tokens" or "content_filter"} if it is incomplete; else null."""
    error: dict[str, str] | None
    """`code` and `message` where it failed; else null."""
    model: str
    """The arm that answers: `ragbandit/<arm>`."""
    previous_response_id: str | None
    """The response that this one continues; null for none."""
    instructions: str | None
    """As the request had it."""
    output: list[dict[str, Any]]
    """A message, if there is text: its part `output_text` has the answer, and the passages that it saw as
    `annotations` of the type `url_citation`, each over the whole answer; a part `refusal` has a refusal. `reasoning`,
    if the model's server sends its thoughts. A `function_call` for each call of a tool. [] if it failed, and before
    there is an answer."""
    usage: dict[str, Any] | None
    """Tokens over all of the arm's calls: `input_tokens`, `output_tokens`, `total_tokens`, and `saved` as in a chat
    completion; null while there is no answer."""
    metadata: dict[str, str]
    """As the request had it."""
    store: bool
    """false: this response cannot be read by its id."""
    safety_identifier: str | None
    """Who asks, as the request had it."""
    ragbandit: NotRequired[Facts]
    """The decision behind the answer; missing while there is none."""


#: prefix of our ids, by which LangChain recognises the id of a response
ID_PREFIX: Final = "resp_"
#: the key of a query's `request` with the namespaces of its functions
NAMESPACES: Final = "namespaces"
#: the key of a query's `request` with the parameters that its response repeats
SENT: Final = "sent"
_NUMBER: Final = int | float
#: parameter that a response repeats -> its value if it was not sent, and the types it may have
_REPEATED: Final[dict[str, tuple[Any, Any]]] = {
    "instructions": (None, str),
    "text": ({"format": {"type": "text"}}, dict),
    "tools": ([], list),
    "tool_choice": ("auto", str | dict),
    "parallel_tool_calls": (True, bool),
    "truncation": ("auto", str),
    "temperature": (1.0, _NUMBER),
    "top_p": (1.0, _NUMBER),
    "presence_penalty": (0.0, _NUMBER),
    "frequency_penalty": (0.0, _NUMBER),
    "top_logprobs": (0, int),
    "reasoning": (None, dict),
    "max_output_tokens": (None, int),
    "max_tool_calls": (None, int),
    "background": (False, bool),
    "service_tier": ("default", str),
    "prompt_cache_key": (None, str),
}
#: fields of a tool with credentials of another server, which are neither stored nor repeated
_CREDENTIALS: Final = frozenset({"authorization", "headers"})


def _repeated(sent: Mapping[str, Any]) -> dict[str, Json]:
    """The parameters of a request that its response repeats, without values of another type than OpenAI's."""
    repeated: dict[str, Json] = {}
    for name, (_, kinds) in _REPEATED.items():
        value = sent.get(name)
        fits = isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool))
        if fits and not (isinstance(value, float) and not math.isfinite(value)):
            repeated[name] = value
    if isinstance(tools := repeated.get("tools"), list):
        whole: list[Any] = [tool for tool in tools if isinstance(tool, dict)]
        repeated["tools"] = [{k: value for k, value in tool.items() if k not in _CREDENTIALS} for tool in whole]
    return repeated


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
    reason = None if outcome is None else _INCOMPLETE.get(finish_of(outcome))
    system = [each.text for each in decision.query.messages if each.role == "system"]
    reply: dict[str, Any] = {
        "id": decision.id,
        "object": "response",
        "created_at": int(decision.made_at),
        "completed_at": int(outcome.made_at) if outcome is not None and status == "completed" else None,
        "status": status,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "error": None if error is None else {"code": error["code"], "message": error["message"]},
        "model": model_name(decision),
        "previous_response_id": request.get("previous_response_id"),
        "instructions": next(iter(system), None) if request.get("instructions") else None,
        "output": [],
        "usage": None,
        "metadata": request.get("metadata") or {},
        "store": request.get("store") is not False,
        "safety_identifier": request.get("user"),
    }
    sent: Any = request.get(SENT) or {}
    for name, (default, _) in _REPEATED.items():
        reply[name] = sent.get(name, reply.get(name, default))
    reply["text"] = _REPEATED["text"][0] | {name: part for name, part in reply["text"].items() if part is not None}
    if outcome is not None:
        reply["output"] = [] if fault else output_of(decision, outcome, base=base)
        reply["usage"] = _usage(outcome, saved=saved)
        reply["ragbandit"] = facts_of(decision, outcome, base=base)
    return reply


def output_of(decision: Decision, outcome: Outcome, *, base: str) -> list[dict[str, Any]]:
    """The items of an answer: reasoning, its text or a refusal, and the calls of tools."""
    passed = message_of(outcome)
    called = enumerate(passed.get("tool_calls", ()))
    calls = [call_item(decision, call, place=place, status="completed") for place, call in called]
    items = []
    if reasoning := reasoning_of(passed):
        content = [item_part("reasoning_text", reasoning)]
        items.append(reasoning_item(decision) | {"status": "completed", "content": content})
    if outcome.answer or passed.get("refusal") or not calls:
        items.append(message(decision, outcome, base=base))
    return [*items, *calls]


def reasoning_of(fields: Mapping[str, Any]) -> str:
    """The thoughts in a message or a delta of one, by the name that its server has for them."""
    return str(fields.get("reasoning_content") or fields.get("reasoning") or "")


def reasoning_item(decision: Decision) -> dict[str, Any]:
    """The item of the thoughts, without them."""
    own = {"id": item_id(decision, part="reasoning_text"), "summary": []}
    return {"type": "reasoning", **own, "status": "in_progress", "content": []}


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
    item: dict[str, Any] = {"type": "message", "id": item_id(decision, part="output_text"), "role": "assistant"}
    if outcome is None:
        return item | {"status": "in_progress", "content": []}
    passed, content = message_of(outcome), []
    if refusal := passed.get("refusal"):
        content.append(item_part("refusal", refusal))
    if outcome.answer or not content:
        cited = annotations_of(outcome, base=base)
        flat = [{"type": "url_citation", **each["url_citation"]} for each in cited]
        logprobs = (passed.get(LOGPROBS) or {}).get("content") or []
        content.insert(0, item_part("output_text", outcome.answer or "") | {"annotations": flat, "logprobs": logprobs})
    return item | {"status": _status(outcome, failed=False), "content": content}


def item_id(decision: Decision, *, part: str) -> str:
    """The id of the item with parts of this type."""
    prefix = "rs" if part == "reasoning_text" else "msg"
    return f"{prefix}_{_item_key(decision)}"


def _item_key(decision: Decision) -> str:
    return decision.id.removeprefix(ID_PREFIX)


def decisions_of_item(key: str) -> list[str]:
    """Ids that the decision of an item with this id may have."""
    kind, _, rest = key.partition("_")
    rest = rest if kind in ("msg", "rs") else rest.rpartition("_")[0]
    return [f"{ID_PREFIX}{rest}", rest]


#: types of parts of items -> the field with the text
_PARTS: Final = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}


def item_part(kind: str, text: str) -> dict[str, Any]:
    """A part of an item, without citations."""
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, _PARTS[kind]: text, **more}


#: reasons for the end of an answer -> those for which a response is incomplete
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def _status(outcome: Outcome | None, *, failed: bool) -> ResponseStatus:
    if outcome is None:
        return "failed" if failed else "in_progress"
    if failed:
        return "cancelled" if outcome.stop_reason == CANCELLED else "failed"
    return "incomplete" if finish_of(outcome) in _INCOMPLETE else "completed"


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
            SENT: storable(_repeated(dict(self)), field="request"),
            NAMESPACES: [name for name in spaces if SHORT_NAME.fullmatch(name)],
        }

    def sent(self, before: Sequence[dict[str, Any]] = ()) -> tuple[dict[str, Any], list[str]]:
        """A chat's parameters, its messages after `before`; types of ignored tools and items. Raises InvalidInput."""
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
