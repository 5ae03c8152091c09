"""Replies: a decision and its outcome as a chat completion, whole, and the types that /openapi.json describes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from ragbandit.router.api.schemas.requests import COMPLETION_PREFIX
from ragbandit.router.types import Cost, Decision, Outcome

__all__ = [
    "ID_PREFIX",
    "Annotation",
    "ChatCompletion",
    "Facts",
    "OpenAIErrorReply",
    "Usage",
    "annotations_of",
    "citations_of",
    "completion",
    "facts_of",
    "fingerprint",
    "finish_of",
    "model_name",
    "task_completion",
    "urls_of",
    "usage_of",
]

#: of the id of a completion; the rest is the decision's
ID_PREFIX: Final = COMPLETION_PREFIX
#: characters of a passage in search_results
_SNIPPET: Final = 300

FinishReason = Literal["stop", "length"]


class OpenAIError(TypedDict):
    """What went wrong; param: the parameter that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorReply(TypedDict):
    """Every error on OpenAI's paths has this shape."""

    error: OpenAIError


# As `ErrorReply`: read when somebody asks for the OpenAPI document.
OpenAIErrorReply.__pydantic_config__ = {"defer_build": True}  # type: ignore[attr-defined] # pydantic's own name


class UrlCitation(TypedDict):
    """A source; the answer as a whole rests on it."""

    url: str
    title: str
    start_index: int
    end_index: int


class Annotation(TypedDict):
    """A citation, as OpenAI has it."""

    type: Literal["url_citation"]
    url_citation: UrlCitation


class SearchResult(TypedDict):
    """A citation, as Perplexity has it."""

    title: str
    url: str
    date: str | None
    snippet: str


class Passage(TypedDict):
    """A passage that the answer saw; score: of the search that found it."""

    id: str
    title: str
    url: str
    score: float | None


class Facts(TypedDict):
    """What a completion does not tell: the decision behind it, and what it cost.

    policy_version: the snapshot that decided. forced: the caller chose the arm. abstained: the arm gave no answer.
    """

    decision_id: str
    arm: str
    propensity: float
    explored: bool
    forced: bool
    policy: str
    policy_version: str
    status: str
    stop_reason: str
    abstained: bool
    steps: float
    cost: Cost
    passages: list[Passage]


class ChatMessage(TypedDict):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: str | None
    annotations: list[Annotation]


class Choice(TypedDict):
    """There is one; finish_reason "length": the budget ended the arm."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: None


class Usage(TypedDict):
    """Tokens over all of the arm's calls."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Completion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class ChatCompletion(_Completion, total=False):
    """A chat completion. What is beside OpenAI's own fields is missing where Open WebUI's tasks are answered."""

    system_fingerprint: str
    citations: list[str]
    search_results: list[SearchResult]
    ragbandit: Facts


def model_name(decision: Decision) -> str:
    """The model of a reply: the arm that answered."""
    return f"ragbandit/{decision.arm}"


def fingerprint(decision: Decision) -> str:
    """What decided: the ledger's label, and the snapshot of the policy."""
    return f"{decision.policy}:{decision.version}"


def usage_of(cost: Cost) -> Usage:
    """The tokens of an answer."""
    return {
        "prompt_tokens": cost.prompt_tokens,
        "completion_tokens": cost.completion_tokens,
        "total_tokens": cost.prompt_tokens + cost.completion_tokens,
    }


def finish_of(outcome: Outcome) -> FinishReason:
    """Why the answer ends."""
    return "length" if outcome.status == "exhausted" else "stop"


def urls_of(outcome: Outcome, *, base: str) -> list[str]:
    """Where each passage can be read; one without a place of its own: in the decision's record. base: of this service.

    Clients drop a citation without a URL.
    """
    record = f"{base.rstrip('/')}/v1/decisions/{outcome.decision_id}"
    return [source.url or f"{record}#{place}" for place, source in enumerate(outcome.sources, start=1)]


def annotations_of(outcome: Outcome, *, urls: Sequence[str]) -> list[Annotation]:
    """The passages as OpenAI's citations. Which words rest on which of them is not known: each spans the answer."""
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "url": url,
                "title": source.title or source.id,
                "start_index": 0,
                "end_index": len(outcome.answer or ""),
            },
        }
        for source, url in zip(outcome.sources, urls, strict=True)
    ]


def citations_of(outcome: Outcome, *, urls: Sequence[str]) -> dict[str, Any]:
    """The passages as Perplexity's citations: keys at the top of a completion."""
    found: list[SearchResult] = [
        {"title": source.title or source.id, "url": url, "date": None, "snippet": source.text[:_SNIPPET]}
        for source, url in zip(outcome.sources, urls, strict=True)
    ]
    return {"citations": list(dict.fromkeys(urls)), "search_results": found}


def facts_of(decision: Decision, outcome: Outcome, *, urls: Sequence[str]) -> Facts:
    """What a completion has of its decision."""
    return {
        "decision_id": decision.id,
        "arm": decision.arm,
        "propensity": decision.propensity,
        "explored": decision.explored,
        "forced": decision.query.forced,
        "policy": decision.policy,
        "policy_version": decision.version,
        "status": outcome.status,
        "stop_reason": outcome.stop_reason,
        "abstained": not (outcome.answer or "").strip(),
        "steps": outcome.steps,
        "cost": asdict(outcome.cost),  # type: ignore[typeddict-item] # as JSON has it
        "passages": [
            {"id": source.id, "title": source.title, "url": url, "score": source.score}
            for source, url in zip(outcome.sources, urls, strict=True)
        ],
    }


def completion(decision: Decision, outcome: Outcome, *, base: str) -> ChatCompletion:
    """The whole reply to a decision that was answered. base: URL of this service."""
    urls = urls_of(outcome, base=base)
    made = _whole(
        f"{ID_PREFIX}{decision.id}",
        created=int(decision.made_at),
        model=model_name(decision),
        text=outcome.answer or "",
        usage=usage_of(outcome.cost),
    )
    made["choices"][0]["finish_reason"] = finish_of(outcome)
    made["choices"][0]["message"]["annotations"] = annotations_of(outcome, urls=urls)
    made["system_fingerprint"] = fingerprint(decision)
    made["ragbandit"] = facts_of(decision, outcome, urls=urls)
    cited = citations_of(outcome, urls=urls)
    made["citations"], made["search_results"] = cited["citations"], cited["search_results"]
    return made


def task_completion(text: str, *, task_id: str, model: str, now: float) -> ChatCompletion:
    """The reply to a background task, which has no decision."""
    return _whole(f"{ID_PREFIX}{task_id}", created=int(now), model=model, text=text, usage=usage_of(Cost()))


def _whole(key: str, *, created: int, model: str, text: str, usage: Usage) -> ChatCompletion:
    message: ChatMessage = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    return {
        "id": key,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": usage,
    }
