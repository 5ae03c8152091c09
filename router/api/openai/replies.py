"""Replies of OpenAI's interface: chat completions, whole and streamed, and the list of models."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NotRequired

from typing_extensions import TypedDict

from ragbandit.client.replies.decisions import CostReply
from ragbandit.router.api.endpoints.streaming import PING, event_bytes
from ragbandit.router.replies.decisions import decision_json, failover_json
from ragbandit.router.replies.values import build_reply, json_of
from ragbandit.router.serving.checks.questions import COMPLETION_PREFIX
from ragbandit.shared.dialects.chat.message_parts import LOGPROBS
from ragbandit.shared.types import (
    CUT,
    MEDIA,
    Decision,
    DeltaPiece,
    Outcome,
    Source,
    StatusNote,
    TextPiece,
    call_ids,
    written_answer,
)

STREAM: Final = {"text/event-stream": {"schema": {"description": "server-sent events"}}}


class Facts(TypedDict):
    """The decision behind a chat completion, and the cost of its answer."""

    decision_id: str
    """Id of the decision."""
    arm: str
    """The arm that was drawn."""
    propensity: float
    """Probability with which the arm was drawn."""
    explored: bool
    """Whether another arm was at least as likely as the drawn arm."""
    forced: bool
    """Whether the request chose the arm; if so, nothing is learned from it."""
    cost_weight: float | None
    """Weight of cost for this question; null if it was the setting `reward.weight`."""
    price: str | None
    """Name of the price (setting `cost_weights`): from the request, or the default of the key or tenant."""
    policy: str
    """Label of the ledger that the policy learns from (setting `policy.label`)."""
    policy_version: str
    """Version of the snapshot that decided."""
    status: str
    """How the arm ended: `answered`, or `exhausted` if its budget was spent."""
    stop_reason: str
    """Why the arm stopped, for example `answered`, `budget_seconds`."""
    abstained: bool
    """Whether the arm gave no answer."""
    steps: float
    """Rounds of search and generation."""
    cost: CostReply
    """What the answer used."""
    ignored: list[str]
    """Parameters, tools and items of the request that this arm does not use."""
    omitted: list[str]
    """Fields of the model's reply that were left out because of their size."""
    passages: list[dict[str, Any]]
    """The passages that the arm saw: `id`, `title`, `url`, and `score` in the search that found the passage."""
    failover: dict[str, Any] | None
    """Set if another arm answered because the drawn arm failed: `first` (id of the first decision), `arm` (the arm that
    failed), `reason`, and `attempt` (from 2). null if the drawn arm answered."""


class ChatCompletion(TypedDict):
    """A chat completion."""

    id: str
    """`chatcmpl-` and the id of the decision."""
    object: Literal["chat.completion"]
    """Kind of object."""
    created: int
    """When the decision was made, seconds since 1970."""
    model: str
    """The arm that answered: `ragbandit/<arm>`."""
    choices: list[dict[str, Any]]
    """One answer in OpenAI's form. If the chat was passed on to a model, it has the tool calls and all other fields of
    the model's reply, and the completion has the further fields of that reply, for example `citations`. `finish_reason`
    is `length` if the budget ended the arm; the answer is then a draft, or empty. The `annotations` of its message are
    the model's own, or the passages that the arm saw, each a citation of the whole answer."""
    usage: dict[str, Any]
    """Tokens of all calls of the arm, and `saved`, an estimate in dollars: mean price of an answer by the arm of
    `policy.holdback` so far, minus the price of this answer. `saved` is missing if it is not known."""
    system_fingerprint: str
    """The model server's fingerprint if it sends one; else the policy: label of its ledger, version of its snapshot."""
    ragbandit: Facts
    """The decision behind the answer."""


class ListedModel(TypedDict):
    """A model that a request may name."""

    id: str
    """Name of the model, as a request sends it."""
    object: Literal["model"]
    """Kind of object."""
    created: int
    """When this service started, seconds since 1970."""
    owned_by: str
    """Always `ragbandit`."""
    context_length: NotRequired[int]
    """Maximum number of tokens of prompt and answer together, of the arm with the largest such limit. Missing if an arm
    takes prompts of any length, or its `context_tokens` is not set."""
    context_window: NotRequired[int]
    """`context_length` again, for clients that read this name."""
    max_model_len: NotRequired[int]
    """`context_length` again, for clients that read this name."""


class ModelList(TypedDict):
    """All models of the service."""

    object: Literal["list"]
    """Kind of object."""
    data: list[ListedModel]
    """The models."""


def answering_model(decision: Decision) -> str:
    return f"ragbandit/{decision.arm}"


def _common_fields(decision: Decision) -> dict[str, Any]:
    return {
        "id": f"{COMPLETION_PREFIX}{decision.id}",
        "created": int(decision.made_at),
        "model": answering_model(decision),
        "system_fingerprint": f"{decision.policy}:{decision.version}",
    }


def usage_of(outcome: Outcome, *, saved: float | None) -> dict[str, Any]:
    cost = outcome.cost
    usage: dict[str, Any] = {
        **further_fields(outcome, "usage"),
        "prompt_tokens": cost.prompt_tokens,
        "completion_tokens": cost.completion_tokens,
        "total_tokens": cost.prompt_tokens + cost.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cost.cached_tokens, "cache_write_tokens": cost.cache_write_tokens},
        "completion_tokens_details": {"reasoning_tokens": cost.reasoning_tokens},
    }
    return usage if saved is None else {**usage, "saved": saved}


def finish_reason_of(outcome: Outcome) -> str:
    """The finish reason of the model's reply if the question is answered; else one for the status."""
    if outcome.status == "exhausted":
        return CUT
    if outcome.status != "answered":
        return "stop"
    return str(outcome.reply.get("finish_reason") or (CUT if outcome.stop_reason == CUT else "stop"))


def message_of(outcome: Outcome) -> dict[str, Any]:
    """The fields of a model's message except the text, and its `logprobs`; {} if the arm does not pass chats on."""
    return further_fields(outcome, "message")


def further_fields(outcome: Outcome, part: str = "more") -> dict[str, Any]:
    """Further fields from a model's server: of the reply ("more"), its "choice", "message" or "usage"."""
    fields = outcome.reply.get(part)
    return dict(fields) if isinstance(fields, Mapping) else {}


def _names(fields: Mapping[str, Any], key: str) -> list[str]:
    names = fields.get(key)
    return list(map(str, names)) if isinstance(names, list) else []


def _citations(outcome: Outcome, *, base: str) -> Iterator[tuple[Source, str]]:
    """Each passage with its URL, or else the URL of the decision, because clients drop citations without URLs."""
    record = f"{base.rstrip('/')}/v1/decisions/{outcome.decision_id}"
    for number, source in enumerate(outcome.sources, start=1):
        yield source, source.url or f"{record}#{number}"


def annotations_of(outcome: Outcome, *, base: str) -> list[dict[str, Any]]:
    """The passages as OpenAI's citations, each of the whole answer: which part a passage supports is not known."""
    span = {"start_index": 0, "end_index": len(outcome.answer or "")}
    cited = [{"url": url, "title": source.title or source.id, **span} for source, url in _citations(outcome, base=base)]
    return [{"type": "url_citation", "url_citation": citation} for citation in cited]


def reply_facts(decision: Decision, outcome: Outcome, *, base: str) -> Facts:
    passages = [
        {"id": source.id, "title": source.title, "url": url, "score": source.score}
        for source, url in _citations(outcome, base=base)
    ]
    return build_reply(
        Facts,
        outcome,
        **decision_json(decision),
        policy_version=decision.version,
        forced=decision.query.arm_by is not None or decision.arm_by == "caller",
        abstained=not ((outcome.answer or "").strip() or call_ids(outcome) or message_of(outcome).keys() & MEDIA),
        ignored=list(decision.query.sent.ignored) + _names(outcome.reply, "ignored"),
        omitted=_names(outcome.reply, "omitted"),
        passages=passages,
        failover=None if (failed := decision.query.continues.failed) is None else failover_json(failed),
    )


def completion(decision: Decision, outcome: Outcome, *, base: str, saved: float | None) -> dict[str, Any]:
    """The whole reply to a chat. base: URL of this service. saved: dollars that the answer saved; None if unknown."""
    fields = message_of(outcome)
    logprobs = fields.pop(LOGPROBS, None)
    message = {
        "role": "assistant",
        "content": written_answer(outcome) or (None if fields else ""),
        "refusal": None,
        "annotations": annotations_of(outcome, base=base),
        **fields,
    }
    last = _last_fields(decision, outcome, base=base, message=message, logprobs=logprobs)
    return {**_common_fields(decision), **last, "object": "chat.completion", "usage": usage_of(outcome, saved=saved)}


def _last_fields(decision: Decision, outcome: Outcome, *, base: str, **answer: Any) -> dict[str, Any]:
    """The fields of a whole reply, or of the last chunk of a streamed one. answer: fields of the choice."""
    choice = {"index": 0, **answer, "finish_reason": finish_reason_of(outcome)}
    choices, facts = [further_fields(outcome, "choice") | choice], reply_facts(decision, outcome, base=base)
    return {**further_fields(outcome), "choices": choices, "ragbandit": facts}


DONE: Final = b"data: [DONE]\n\n"


class ChatStream:
    """Makes the events of a streamed chat completion, as bytes. include_usage: send the usage in the last chunk.

    open_webui: whether the client is Open WebUI, which shows what the arm does, and sources with their texts.
    """

    def __init__(self, decision: Decision, *, include_usage: bool, base: str, open_webui: bool) -> None:
        self._head = {**_common_fields(decision), "object": "chat.completion.chunk"}
        self._include_usage = include_usage
        #: bytes before and after the delta of every piece of the answer
        self._begin, self._end = b"data: " + json_of(self._head)[:-1] + b',"choices":[{"index":0,"delta":', b"}]"
        self._end += b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self.decision = decision
        self._base = base
        self._open_webui = open_webui
        #: status that Open WebUI shows at present; None if it shows none
        self._shown_status: str | None = None
        #: whether a piece of the answer was sent
        self.has_begun = False

    def events_for(self, event: TextPiece | DeltaPiece | StatusNote | None) -> list[bytes]:
        """The events to send for one event of the answer. event: None if nothing has come for PING_S seconds."""
        if event is None:
            return [PING]
        if isinstance(event, TextPiece):
            return [*self._before_piece(), self._chunk({"content": event.text})]
        if isinstance(event, DeltaPiece):
            delta = {name: value for name, value in event.delta.items() if name != LOGPROBS}
            return [*self._before_piece(), self._chunk(delta, logprobs=event.delta.get(LOGPROBS))]
        if not self._open_webui:
            return []
        self._shown_status = event.text
        return [self._status(event.text, done=False)]

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        events, delta = self._before_piece(), {}
        if self._open_webui:
            events += [self._event(event=source) for source in _sources(outcome, base=self._base)]
        elif outcome.sources:
            delta = {"annotations": annotations_of(outcome, base=self._base)}
        last = _last_fields(self.decision, outcome, base=self._base, delta=delta, logprobs=None)
        events.append(self._event(**last))
        if self._include_usage:
            events.append(self._event(usage=usage_of(outcome, saved=saved)))
        return [*events, DONE]

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        return [event_bytes({"error": error}, name=None), DONE]

    def _before_piece(self) -> list[bytes]:
        """The events before a piece of the answer: the role before the first piece, and the end of a shown status."""
        events = []
        if not self.has_begun:
            events.append(self._chunk({"role": "assistant", "content": ""}))
        if self._shown_status is not None:
            events.append(self._status(self._shown_status, done=True))
        self.has_begun, self._shown_status = True, None
        return events

    def _status(self, text: str, *, done: bool) -> bytes:
        status = {"type": "status", "data": {"description": text, "done": done}}
        return self._event(event=status)

    def _chunk(self, delta: Mapping[str, Any], *, logprobs: object = None) -> bytes:
        more = b',"finish_reason":null,"logprobs":'
        return b"".join((self._begin, json_of(delta), more, json_of(logprobs), self._end))

    def _event(self, **fields: Any) -> bytes:
        usage = {"usage": None} if self._include_usage else {}
        return event_bytes({**self._head, "choices": [], **usage, **fields}, name=None)


def _sources(outcome: Outcome, *, base: str) -> list[dict[str, Any]]:
    sources = list[dict[str, Any]]()
    for source, url in _citations(outcome, base=base):
        name = source.title or source.id
        data: dict[str, Any] = {"source": {"name": name, "url": url}, "metadata": [{"source": url, "name": name}]}
        data["document"] = [source.text]
        if source.score is not None:
            data["distances"] = [source.score]
        sources.append({"type": "source", "data": data})
    return sources
