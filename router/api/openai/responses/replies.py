"""Replies: a decision and its outcome as a response of the Open Responses specification."""

from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired

from typing_extensions import TypedDict

from ragbandit.router.api.openai.errors import error_in_reply, fault_of
from ragbandit.router.api.openai.replies import Facts, annotations_of, facts_of, model_name, urls_of, usage_of
from ragbandit.shared.types import CANCELLED, Decision, Outcome

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
    read, written = usage.pop("prompt_tokens"), usage.pop("completion_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        **usage,
    }
