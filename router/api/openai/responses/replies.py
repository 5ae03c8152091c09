"""Replies: a decision and its outcome as a response, and the types that /openapi.json describes."""

from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired

from typing_extensions import TypedDict

from ragbandit.router.api.openai.errors import error_in_reply, fault_of
from ragbandit.router.api.openai.replies import Facts, annotations_of, facts_of, model_name, urls_of
from ragbandit.shared.types import CANCELLED, Cost, Decision, Outcome

ResponseStatus = Literal["completed", "in_progress", "incomplete", "failed", "cancelled"]


class ResponseCitation(TypedDict):
    """A passage that the answer saw; the answer as a whole rests on it."""

    type: Literal["url_citation"]
    """Kind of annotation."""
    url: str
    """Where it can be read; without a place of its own, in the decision's record."""
    title: str
    """Its title."""
    start_index: int
    """0: which words rest on it is not known."""
    end_index: int
    """Length of the answer, characters."""


class OutputText(TypedDict):
    """The text of an answer."""

    type: Literal["output_text"]
    """Kind of part."""
    text: str
    """The answer; of an incomplete response a draft, or nothing."""
    annotations: list[ResponseCitation]
    """The passages that the answer saw."""
    logprobs: list[Any]
    """[]."""


class OutputMessage(TypedDict):
    """The answer."""

    type: Literal["message"]
    """Kind of item."""
    id: str
    """Id of the item."""
    status: Literal["completed", "incomplete", "in_progress"]
    """`incomplete` where the budget ended the arm."""
    role: Literal["assistant"]
    """Who speaks."""
    content: list[OutputText]
    """The text; one part."""


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    """Stable name of the error."""
    message: str
    """What is wrong, and what to do."""


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]
    """The budget ended the arm; `ragbandit.stop_reason` has which part of it."""


class InputTokensDetails(TypedDict):
    """Tokens read by the model."""

    cached_tokens: int
    """0: it is not known."""
    cache_write_tokens: int
    """0: it is not known."""


class OutputTokensDetails(TypedDict):
    """Tokens written by the model."""

    reasoning_tokens: int
    """0: it is not known."""


class ResponseUsage(TypedDict):
    """Tokens over all of the arm's calls."""

    input_tokens: int
    """Tokens read by the model."""
    input_tokens_details: InputTokensDetails
    """Of these."""
    output_tokens: int
    """Tokens written by the model."""
    output_tokens_details: OutputTokensDetails
    """Of these."""
    total_tokens: int
    """Both together."""
    saved: NotRequired[float]
    """Estimate: mean dollars of an answer by the arm of `policy.holdback` so far, less this answer's; missing where it
    is not known."""


class ResponseReply(TypedDict):
    """A response. Settings of models (`temperature` and the like) are constants: arms have their own."""

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
    incomplete_details: IncompleteDetails | None
    """Why it is incomplete; else null."""
    error: ResponseError | None
    """Why it failed; else null."""
    model: str
    """The arm that answers: `ragbandit/<arm>`."""
    previous_response_id: str | None
    """The response that this one goes on from; null for none."""
    instructions: str | None
    """Words of the system, as the arm saw them; null where `instructions` was not sent."""
    output: list[OutputMessage]
    """The answer; [] while there is none, and where it failed."""
    usage: ResponseUsage | None
    """Tokens over all of the arm's calls; null while there is no answer."""
    metadata: dict[str, str]
    """As the request had it."""
    store: bool
    """false: this response cannot be read by its id."""
    safety_identifier: str | None
    """Who asks, as the request had it."""
    text: dict[str, Any]
    """{"format": {"type": "text"}}."""
    tools: list[Any]
    """[]."""
    tool_choice: Literal["none"]
    """No tool is called."""
    parallel_tool_calls: bool
    """false."""
    truncation: Literal["auto"]
    """Of a long conversation the arm sees the last turns (the setting `conversation`)."""
    temperature: float
    """1."""
    top_p: float
    """1."""
    presence_penalty: float
    """0."""
    frequency_penalty: float
    """0."""
    top_logprobs: int
    """0."""
    reasoning: None
    """Null."""
    max_output_tokens: None
    """Null: the setting `budget` caps an answer."""
    max_tool_calls: None
    """Null."""
    background: bool
    """false."""
    service_tier: Literal["default"]
    """`default`."""
    prompt_cache_key: None
    """Null."""
    ragbandit: NotRequired[Facts]
    """The decision behind the answer; missing while there is none."""


class InputText(TypedDict):
    """The text of a message."""

    type: Literal["input_text", "output_text"]
    """Kind of part."""
    text: str
    """The text."""


class InputMessage(TypedDict):
    """A message of the conversation before an answer."""

    type: Literal["message"]
    """Kind of item."""
    id: str
    """Id of the item."""
    status: Literal["completed"]
    """State of the item."""
    role: Literal["system", "user", "assistant"]
    """Who speaks."""
    content: list[InputText]
    """The text; one part."""


class InputItems(TypedDict):
    """The conversation before an answer, as the arm saw it."""

    object: Literal["list"]
    """Kind of object."""
    data: list[InputMessage]
    """The messages, the newest first."""
    first_id: str
    """Id of the first."""
    last_id: str
    """Id of the last."""
    has_more: Literal[False]
    """These are all."""


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
) -> ResponseReply:
    """The response of a decision. base: URL of this service. error: why there will be no answer, as OpenAI has it."""
    fault = None if outcome is None else fault_of(decision, outcome)
    error = error_in_reply(fault) if fault is not None else error
    status, request = _status(outcome, failed=error is not None), decision.query.request
    is_answer = outcome is not None and fault is None
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
        "output": [message(decision, outcome, base=base)] if outcome is not None and is_answer else [],
        "usage": None if outcome is None else _usage(outcome.cost, saved=saved),
        "metadata": request.get("metadata") or {},
        "store": request.get("store") is not False,
        "safety_identifier": request.get("user"),
        **_CONSTANTS,
    }
    if outcome is not None:
        reply["ragbandit"] = facts_of(decision, outcome, urls=urls_of(outcome, base=base))
    return reply  # type: ignore[return-value] # its fields stand above


def message(decision: Decision, outcome: Outcome | None, *, base: str) -> OutputMessage:
    """The item of the answer; without an outcome that of one that has begun."""
    item: OutputMessage = {
        "type": "message",
        "id": item_id(decision),
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    if outcome is not None:
        cited = annotations_of(outcome, urls=urls_of(outcome, base=base))
        item["status"] = "incomplete" if outcome.status == "exhausted" else "completed"
        item["content"] = [text_part(outcome.answer or "")]
        item["content"][0]["annotations"] = [{"type": "url_citation", **each["url_citation"]} for each in cited]
    return item


def item_id(decision: Decision) -> str:
    """The id of the item of the answer."""
    return f"msg_{decision.id.removeprefix(ID_PREFIX)}"


def text_part(text: str) -> OutputText:
    """A part of an item, without citations."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def input_items(decision: Decision) -> InputItems:
    """The conversation and the question of a decision."""
    query = decision.query
    said = [(each.role, each.text) for each in query.messages]
    said.append(("user", query.asked or query.text))
    items = [_input_message(decision, number, role=role, text=text) for number, (role, text) in enumerate(said)]
    items.reverse()
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"],
        "last_id": items[-1]["id"],
        "has_more": False,
    }


def _input_message(decision: Decision, number: int, *, role: Any, text: str) -> InputMessage:
    kind: Any = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "id": f"{item_id(decision)}_{number}",
        "status": "completed",
        "role": role,
        "content": [{"type": kind, "text": text}],
    }


def _status(outcome: Outcome | None, *, failed: bool) -> ResponseStatus:
    if outcome is not None and (outcome.status, outcome.stop_reason) == ("failed", CANCELLED):
        return "cancelled"
    if failed:
        return "failed"
    if outcome is None:
        return "in_progress"
    return "incomplete" if outcome.status == "exhausted" else "completed"


def _instructions(decision: Decision) -> str | None:
    if not decision.query.request.get("instructions"):
        return None
    return next((each.text for each in decision.query.messages if each.role == "system"), None)


def _usage(cost: Cost, *, saved: float | None) -> ResponseUsage:
    usage: ResponseUsage = {
        "input_tokens": cost.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": cost.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": cost.prompt_tokens + cost.completion_tokens,
    }
    return usage if saved is None else {**usage, "saved": saved}
