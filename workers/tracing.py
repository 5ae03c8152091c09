"""Tracing of answers: the span of an arm's run in the trace of its decision, and one for each of its calls."""

import json
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager

from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.carriers import carrier_of
from ragbandit.router.telemetry.tracing import Attribute, Span, Tracing
from ragbandit.shared.types import Decision, Outcome
from ragbandit.strategies.base import Completion, Generator, Hit, Request, Retriever
from ragbandit.strategies.spans import NO_SPANS, CallSpan, Spans

__all__ = ["spans_of", "traced_run"]


def spans_of(tracing: Tracing) -> Spans:
    """What a run is to tell of its calls."""
    return _ArmSpans(tracing) if tracing.enabled else NO_SPANS


async def traced_run(tracing: Tracing, work: Awaitable[Outcome], *, decision: Decision, attempt: int) -> Outcome:
    """The outcome of a run, within its span.

    attempt: 1 for the first, whose span is a part of the decision's. A later one begins a trace of its own that links
    to the decision: the caller's trace may be long over.
    """
    if not tracing.enabled:
        return await work
    carrier = carrier_of(decision.query.request)
    attributes: dict[str, Attribute | None] = {
        names.OPERATION: "invoke_workflow",
        names.WORKFLOW: decision.arm,
        names.SPAN_KIND: "CHAIN",
        names.CONVERSATION: decision.query.session,
        names.DECISION_ID: decision.id,
        names.DECISION_ARM: decision.arm,
        names.ATTEMPT: attempt,
    }
    parent, link = (carrier, None) if attempt <= 1 else (None, carrier)
    with tracing.span(f"invoke_workflow {decision.arm}", attributes=attributes, parent=parent, link=link) as span:
        outcome = await work
        span.set(_ended(outcome))
        if outcome.status == "failed":
            span.fail(outcome.stop_reason or "failed")
    return outcome


def _ended(outcome: Outcome) -> dict[str, Attribute | None]:
    return {
        names.STATUS: outcome.status,
        names.STOP_REASON: outcome.stop_reason,
        names.STEPS: outcome.steps,
        names.PASSAGES: outcome.cost.passages,
        names.DOLLARS: outcome.cost.dollars,
    }


class _ArmSpans:
    """Makes a span of every call."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    @contextmanager
    def searching(self, query: str, *, k: int, retriever: Retriever) -> Iterator[CallSpan]:
        texts = self._tracing.texts_in_spans
        attributes: dict[str, Attribute | None] = {
            names.OPERATION: "retrieval",
            names.DATA_SOURCE: retriever.name,
            names.TOP_K: k,
            names.SPAN_KIND: "RETRIEVER",
            names.QUERY_TEXT: query if texts else None,
        }
        with self._tracing.span(f"retrieval {retriever.name}", kind="client", attributes=attributes) as span:
            yield _CallSpan(span, texts=texts)

    @contextmanager
    def generating(self, request: Request, *, purpose: str, generator: Generator) -> Iterator[CallSpan]:
        texts = self._tracing.texts_in_spans
        attributes: dict[str, Attribute | None] = {
            names.OPERATION: "chat",
            names.REQUEST_MODEL: generator.name,
            names.REQUEST_MAX_TOKENS: request.max_tokens,
            names.PURPOSE: purpose,
            names.SPAN_KIND: "LLM",
            names.INPUT_MESSAGES: _asked(request) if texts else None,
        }
        with self._tracing.span(f"chat {generator.name}", kind="client", attributes=attributes) as span:
            yield _CallSpan(span, texts=texts)


class _CallSpan:
    def __init__(self, span: Span, *, texts: bool) -> None:
        self._span, self._texts = span, texts

    def retrieved(self, hits: Sequence[Hit]) -> None:
        found = [{"id": hit.passage.id, "score": hit.score, "content": hit.passage.text} for hit in hits]
        self._span.set({names.PASSAGES: len(hits), names.DOCUMENTS: json.dumps(found) if self._texts else None})

    def generated(self, done: Completion) -> None:
        self._span.set(
            {
                names.INPUT_TOKENS: done.prompt_tokens,
                names.OUTPUT_TOKENS: done.completion_tokens,
                names.FINISH_REASONS: [done.finish],
                names.OUTPUT_MESSAGES: _message("assistant", done.text) if self._texts else None,
            }
        )


def _asked(request: Request) -> str:
    prompt = request.prompt
    said = [("system", prompt.instructions), *((one.role, one.text) for one in prompt.history), ("user", prompt.body)]
    return json.dumps([_turn(role, text) for role, text in said])


def _message(role: str, text: str) -> str:
    """One message in the JSON of the conventions."""
    return json.dumps([_turn(role, text)])


def _turn(role: str, text: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}
