import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

from typing_extensions import TypedDict

from ragbandit.additions.responses.items import (
    CALL,
    COMPACTIONS,
    FREE_TEXT_CALL,
    ITEM,
    SUMMARY,
    asks_for_summary,
)
from ragbandit.additions.responses.tools import CLIENT_TOOLS, call_facts, client_name_of, sent_tools
from ragbandit.router.api.openai import errors, replies
from ragbandit.router.api.openai.chats import Choice, WholeNumber, storable_field
from ragbandit.router.api.openai.requests import OpenAIBody, configured
from ragbandit.router.api.schemas.requests import ANY_TEXT, ID, TEXT, accepts, schema_limits
from ragbandit.router.serving.checks.questions import RESPONSE_PREFIX
from ragbandit.shared.dialects.chat.message_parts import LOGPROBS, reasoning_in, thoughts_of
from ragbandit.shared.reading.fields import objects_in
from ragbandit.shared.types import CANCELLED, Decision, Json, Outcome

ResponseStatus = Literal["completed", "in_progress", "incomplete", "failed", "cancelled"]


class ResponseReply(TypedDict):
    """A response of the Open Responses specification.

    It repeats parameters of the request such as `temperature`, `tools` and `text`; parameters that were not sent have
    the default of the specification. Only arms of the class `model` read them.
    """

    id: str
    """Id of the decision."""
    object: Literal["response"]
    """Kind of object."""
    created_at: int
    """When the decision was made, seconds since 1970."""
    completed_at: int | None
    """When the answer came, seconds since 1970; null unless the status is `completed`."""
    status: ResponseStatus
    """`incomplete` if the budget, the model's limit of tokens or its filter ended the answer."""
    incomplete_details: dict[str, str] | None
    """{"reason": "max_output_tokens" or "content_filter"} if the status is `incomplete`; else null."""
    error: dict[str, str] | None
    """`code` and `message` if the response failed; else null."""
    model: str
    """The arm that answers: `ragbandit/<arm>`."""
    previous_response_id: str | None
    """The response that this one continues; null if it continues none."""
    instructions: str | None
    """`instructions` of the request."""
    output: list[dict[str, Any]]
    """Items of the answer. A `message` has the text in its part `output_text`, or a refusal in its part `refusal`.
    The `annotations` of the text are the passages that the arm saw, each a `url_citation` of the whole answer. A
    `reasoning` item has the thoughts that the model's server sent, each call of a tool is a `function_call`, a
    `custom_tool_call` for a tool of free text, or the item of a tool that the client runs, and each image that the
    model made is an `image_generation_call`. Other fields of the model's message are in its item. [] before there is
    an answer, and if the response failed."""
    usage: dict[str, Any] | None
    """Tokens of all calls of the arm: `input_tokens`, `output_tokens`, `total_tokens`, and `saved` as in a chat
    completion; null before there is an outcome."""
    metadata: dict[str, str]
    """`metadata` of the request."""
    store: bool
    """false if this response cannot be read by its id."""
    safety_identifier: str | None
    """`safety_identifier` or `user` of the request."""
    ragbandit: NotRequired[replies.Facts]
    """The decision behind the answer; missing before there is an outcome."""


#: key in `Sent.others`: True if the answer is a summary in place of the conversation's turns
COMPACTS: Final = "compacts"
#: key in `Sent.others`: sent parameters that the response repeats
SENT: Final = "sent"
#: parameter that a response repeats -> value if the request does not have it
_REPEATED: Final[dict[str, Any]] = {
    "instructions": None,
    "text": {"format": {"type": "text"}},
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
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
#: fields of a tool with credentials for another server; they are neither stored nor repeated
_CREDENTIALS: Final = frozenset({"authorization", "headers"})


def storable_tools(tools: Sequence[Mapping[str, Any]]) -> list[Json]:
    return [{name: tool[name] for name in tool if name not in _CREDENTIALS} for tool in tools]


def _repeated_parameters(sent: Mapping[str, Any]) -> dict[str, Json]:
    repeated = {name: sent[name] for name in _REPEATED if sent.get(name) is not None}
    tools = storable_tools(repeated.pop("tools", ()))
    return repeated | ({"tools": tools} if tools else {})


def response(
    decision: Decision,
    outcome: Outcome | None,
    *,
    base: str,
    saved: float | None = None,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The response of a decision. outcome: None if there is no answer yet.

    base: URL of this service.
    saved: dollars that the answer saved; None if unknown.
    error: why there will be no answer, in OpenAI's form.
    """
    fault = None if outcome is None else errors.fault_of(decision, outcome)
    error = error if fault is None else errors.error_in_reply(fault)
    status, query = _status(outcome, failed=error is not None), decision.query
    notes = query.sent.others
    reason = None if outcome is None else _INCOMPLETE.get(replies.finish_reason_of(outcome))
    system = [message.text for message in decision.query.messages if message.role == "system"]
    reply: dict[str, Any] = {
        "id": decision.id,
        "object": "response",
        "created_at": int(decision.made_at),
        "completed_at": int(outcome.made_at) if outcome is not None and status == "completed" else None,
        "status": status,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "error": None if error is None else {"code": error["code"], "message": error["message"]},
        "model": replies.answering_model(decision),
        "previous_response_id": query.continues.previous,
        "instructions": next(iter(system), None) if notes.get("instructions") else None,
        "output": [],
        "usage": None,
        "metadata": query.sent.metadata,
        "store": notes.get("store") is not False,
        "safety_identifier": query.sent.user,
    }
    sent: Any = notes.get(SENT) or {}
    for name, default in _REPEATED.items():
        reply[name] = sent.get(name, reply.get(name, default))
    reply["text"] = _REPEATED["text"] | {name: part for name, part in reply["text"].items() if part is not None}
    if outcome is not None:
        if not fault:
            reply["output"] = output_of(decision, outcome, base=base)
        reply["usage"] = _usage(outcome, saved=saved)
        reply["ragbandit"] = replies.reply_facts(decision, outcome, base=base)
        more = replies.further_fields(outcome, "choice") | replies.further_fields(outcome)
        reply |= {name: value for name, value in more.items() if name not in reply or name == "service_tier"}
    return reply


def output_of(decision: Decision, outcome: Outcome, *, base: str) -> list[dict[str, Any]]:
    passed = replies.message_of(outcome)
    if (
        decision.query.sent.others.get(COMPACTS)
        and outcome.answer
        and replies.finish_reason_of(outcome) not in _INCOMPLETE
    ):
        key = f"cmp_{_item_key(decision)}_0"
        return [{"type": COMPACTIONS[0], "id": key, "encrypted_content": f"{SUMMARY}{outcome.answer}"}]
    called = enumerate(passed.get("tool_calls", ()))
    calls = [call_item(decision, call, place=place, status="completed") for place, call in called]
    items = []
    fields = reasoning_in(passed)
    if fields:
        text = thoughts_of(fields)
        item = reasoning_item(decision) | {"status": "completed"}
        item["content"] = [item_part("reasoning_text", text)] if text else []
        opaque = {name: value for name, value in fields.items() if name not in ("reasoning_content", "reasoning")}
        if opaque.keys() & {"reasoning_text", "reasoning_details"} and len(opaque) == len(fields):
            opaque["reasoning_content"] = None  # the text of the item repeats these fields, so models do not get it
        if opaque:  # clients send this field back, and drop fields that they do not know
            item["encrypted_content"] = json.dumps(opaque)
        items.append(item)
    if outcome.answer or passed.get("refusal") or not calls:
        items.append(message_item(decision, outcome, base=base))
    images = enumerate(objects_in(passed.get("images")))
    return items + calls + [_image_item(decision, image, place=place) for place, image in images]


def _image_item(decision: Decision, image: Mapping[str, Any], *, place: int) -> dict[str, Any]:
    """The item of an image that the model made. Its `result` is base64, or the address of the image."""
    sent = image.get("image_url")
    url = str(sent.get("url") if isinstance(sent, Mapping) else sent or image.get("url") or "")
    head, comma, data = url.partition(";base64,")
    fields = {"output_format": head.rpartition("/")[2], "result": data} if comma else {"result": url}
    key = f"ig_{_item_key(decision)}_{place}"
    return (fields if url else dict(image)) | {"type": "image_generation_call", "id": key, "status": "completed"}


def reasoning_item(decision: Decision) -> dict[str, Any]:
    key = item_id(decision, part="reasoning_text")
    return {"type": "reasoning", "id": key, "summary": [], "status": "in_progress", "content": []}


#: type of the item of a call -> beginning of its id
_CALL_IDS: Final = {
    CALL: "fc",
    FREE_TEXT_CALL: "ctc",
    "tool_search_call": "tsc",
    "local_shell_call": "lsh",
    "shell_call": "sh",
    "apply_patch_call": "apc",
}


def call_item(decision: Decision, call: Mapping[str, Any], *, place: int, status: str) -> dict[str, Any]:
    """The item of a tool call. call: in the form of chat completions. place: index among the calls of the answer."""
    custom, function = call.get("custom"), call.get("function") or {}
    own_kind, names = client_name_of(decision.query.sent.others, str((custom or function).get("name")))
    arguments = function.get("arguments") or ""
    own = None if own_kind is None else CLIENT_TOOLS[own_kind].item_fields(arguments)
    if isinstance(custom, Mapping):
        kind, fields = FREE_TEXT_CALL, {**names, "input": custom.get("input") or ""}
    elif own is not None:
        kind, fields = f"{own_kind}_call", own
    else:
        kind, fields = CALL, {**names, "arguments": arguments}
    fields |= {"call_id": call.get("id")}
    fields |= reasoning_in(call)
    # The item's id contains the decision's id, because models reuse ids of calls, and a reference needs a unique id.
    return {"type": kind, "id": f"{_CALL_IDS[kind]}_{_item_key(decision)}_{place}", "status": status, **fields}


def message_item(decision: Decision, outcome: Outcome | None, *, base: str) -> dict[str, Any]:
    """The item with the text or refusal of the answer. outcome: None for a message that has only begun."""
    item: dict[str, Any] = {"type": "message", "id": item_id(decision, part="output_text"), "role": "assistant"}
    if outcome is None:
        return item | {"status": "in_progress", "content": []}
    passed, content = replies.message_of(outcome), []
    if passed.get("refusal"):
        content.append(item_part("refusal", passed["refusal"]))
    if outcome.answer or not content:
        part = item_part("output_text", outcome.answer or "")
        cited = passed.get("annotations") or replies.annotations_of(outcome, base=base)
        part["annotations"] = list(map(_flatten_annotation, cited))
        part["logprobs"] = (passed.get(LOGPROBS) or {}).get("content") or []
        content.insert(0, part)
    known = _IN_ITEMS | reasoning_in(passed).keys()
    more = {name: value for name, value in passed.items() if name not in known}
    return {**more, **item, "status": _status(outcome, failed=False), "content": content}


#: fields of a message that its items have in another form
_IN_ITEMS: Final = frozenset({"refusal", "annotations", "images", "tool_calls", "function_call", LOGPROBS})


def _flatten_annotation(annotation: Mapping[str, Any]) -> dict[str, Any]:
    """An annotation of a chat completion in the form of responses, without an object for its fields."""
    fields, citation = dict(annotation), annotation.get("url_citation")
    return {"type": "url_citation", **citation} if isinstance(citation, Mapping) else fields


def item_id(decision: Decision, *, part: str) -> str:
    """Id of the message or reasoning item. It begins with the kind of item, like OpenAI's ids. part: type of a part."""
    return f"{'rs' if part == 'reasoning_text' else 'msg'}_{decision.id.removeprefix(RESPONSE_PREFIX)}"


def _item_key(decision: Decision) -> str:
    return decision.id.removeprefix(RESPONSE_PREFIX)


def possible_decision_ids(key: str) -> list[str]:
    """The two ids that the decision of an item may have: with and without RESPONSE_PREFIX. key: id of the item."""
    kind, _, decision_key = key.partition("_")
    if kind not in ("msg", "rs"):
        decision_key = decision_key.rpartition("_")[0]
    return [f"{RESPONSE_PREFIX}{decision_key}", decision_key]


_PARTS: Final = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}


def item_part(kind: str, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": kind, _PARTS[kind]: text}
    return part | {"annotations": [], "logprobs": []} if kind == "output_text" else part


#: finish reason of an answer -> reason why its response is incomplete
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def _status(outcome: Outcome | None, *, failed: bool) -> ResponseStatus:
    if outcome is None:
        return "failed" if failed else "in_progress"
    if failed:
        return "cancelled" if outcome.stop_reason == CANCELLED else "failed"
    return "incomplete" if replies.finish_reason_of(outcome) in _INCOMPLETE else "completed"


def _usage(outcome: Outcome, *, saved: float | None) -> dict[str, Any]:
    usage = replies.usage_of(outcome, saved=saved)
    for chat_name, name in (("prompt", "input"), ("completion", "output")):
        usage[f"{name}_tokens"] = usage.pop(f"{chat_name}_tokens")
        usage[f"{name}_tokens_details"] = usage.pop(f"{chat_name}_tokens_details")
    return usage


class ResponseBody(OpenAIBody):
    """A request for a response. Arms of the class `model` pass on all other parameters too."""

    model_config = configured(model="auto", input="Who wrote Dracula?")

    # JSON Schema cannot express that the last message of a user or an assistant must be a user's.
    input: Annotated[
        Annotated[str, schema_limits(TEXT)]
        | Annotated[list[Annotated[dict[str, Any], schema_limits(ITEM)]], schema_limits(minItems=1)],
        accepts("text or a list of objects"),
    ]
    """The question, or a conversation of items. A `message` has `role` and `content`, which is text or a list of parts
    (`input_text`, `input_image`, `input_file`, `output_text`). Arms that pass chats on also get `function_call` and
    `function_call_output`; calls of other tools and their outputs become those of functions. The tools of
    `additional_tools` and `tool_search_output` are offered like `tools`. An `agent_message` is a user's message.
    `reasoning` becomes the `reasoning_content` of the answer or call that follows it. An `item_reference` is replaced
    by its item. Items of other types are left out and named in `request.ignored`."""
    instructions: Annotated[str | None, schema_limits(ANY_TEXT)] = None
    """A system message for this response only."""
    tools: list[dict[str, Any]] | None = None
    """Functions, tools of free text (`custom`) and tools that the client runs (`tool_search`, `shell`, `local_shell`,
    `apply_patch`) that the model may call, for arms that pass chats on. Tools that OpenAI runs itself are left out and
    named in `request.ignored`."""
    previous_response_id: Annotated[str | None, schema_limits(ID)] = None
    """Id of an earlier response: its conversation and answer come before `input`. 404 if the caller may not read that
    response, or if it was made with `store: false`."""
    store: bool | None = None
    """If false, the response cannot be read by its id or continued. Its decision is stored nevertheless."""
    conversation: Annotated[Choice, schema_limits(enum=[None])] = None
    """Only null is supported: `previous_response_id` and the header `X-RagBandit-Session-Id` name the conversation."""
    background: Annotated[bool | None, schema_limits(enum=[False, None])] = None
    """Only false is supported; `POST /v1/answer?wait_s=0` replies before there is an answer."""
    text: Annotated[dict[str, Any] | None, schema_limits(properties={"format": {"type": "object"}})] = None
    """`format`: the form of the answer, `text`, `json_object` or `json_schema`. `verbosity` is passed on."""
    max_output_tokens: Annotated[WholeNumber, schema_limits(minimum=1)] = None
    """Maximum number of tokens of the answer."""
    include: list[str] | None = None
    """`message.output_text.logprobs` asks for log-probabilities; other values are ignored."""
    prompt: Annotated[dict[str, Any] | None, schema_limits(enum=[None])] = None
    """Only null is supported: the service has no prompt templates."""

    @property
    def notes(self) -> dict[str, Json]:
        """Facts about the request, for `Sent.others`."""
        return {
            "instructions": True if self.instructions else None,
            "store": False if self.store is False else None,
            SENT: storable_field(
                _repeated_parameters({**self.__dict__, **(self.__pydantic_extra__ or {})}), field="request"
            )[0],
            **call_facts(sent_tools(self.sent_fields)),
            COMPACTS: True if asks_for_summary(self.input) else None,
        }


#: parameter that must be null or false -> (why, remedy)
_REFUSED: Final = {
    "conversation": ("the service stores no conversation objects", "send previous_response_id"),
    "prompt": ("the service has no prompt templates", "send input and instructions"),
    "background": ("the service always waits for the answer", "use POST /v1/answer?wait_s=0"),
}


def check_response(body: ResponseBody) -> None:
    for field, (message, remedy) in _REFUSED.items():
        if getattr(body, field):
            raise errors.Unsupported(message, field=field, remedy=remedy)
