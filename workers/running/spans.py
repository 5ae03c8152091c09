"""Spans of a run: the run itself, its searches and its calls of models."""

import contextlib
import json
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.tracing import Attribute, Tracing, carrier_of
from ragbandit.shared.types import Decision, Outcome
from ragbandit.strategies.base import Generator, Hit, Request, Retriever
from ragbandit.strategies.run import NoteCompletion, NoteHits, Spans, provider_of


async def run_in_span(
    tracing: Tracing, work: Coroutine[Any, Any, Outcome], *, decision: Decision, attempt: int
) -> Outcome:
    """Await the run within a span. Returns its outcome. attempt: from 1. The first span is a child of the decision's;
    later ones begin a new trace with a link to it, because the caller's trace may be over.
    """
    carrier = carrier_of(decision.query.sent)
    attributes: dict[str, Attribute | None] = {
        names.OPERATION: "invoke_workflow",
        names.WORKFLOW: decision.arm,
        names.SPAN_KIND: "CHAIN",
        names.CONVERSATION: decision.query.own_session,
        names.DECISION_ID: decision.id,
        names.DECISION_ARM: decision.arm,
        names.ATTEMPT: attempt,
    }
    parent, link = (carrier, None) if attempt <= 1 else (None, carrier)
    with tracing.span(f"invoke_workflow {decision.arm}", attributes=attributes, parent=parent, link=link) as span:
        outcome = await work
        span.set(
            {
                names.STATUS: outcome.status,
                names.STOP_REASON: outcome.stop_reason,
                names.STEPS: outcome.steps,
                names.PASSAGES: outcome.cost.passages,
                names.DOLLARS: outcome.cost.dollars,
            }
        )
        if outcome.status == "failed":
            span.fail(outcome.stop_reason or "failed")
    return outcome


class ArmSpans(Spans):
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    @contextlib.contextmanager
    def searching(self, query: str, *, k: int, retriever: Retriever) -> Iterator[NoteHits]:
        texts = self._tracing.texts_in_spans
        attributes: dict[str, Attribute | None] = {
            names.OPERATION: "retrieval",
            names.DATA_SOURCE: retriever.name,
            names.TOP_K: k,
            names.SPAN_KIND: "RETRIEVER",
            names.QUERY_TEXT: query if texts else None,
        }
        with self._tracing.span(f"retrieval {retriever.name}", kind="client", attributes=attributes) as span:

            def note(hits: Sequence[Hit]) -> None:
                documents = [{"id": hit.passage.id, "score": hit.score, "content": hit.passage.text} for hit in hits]
                span.set({names.PASSAGES: len(hits), names.DOCUMENTS: json.dumps(documents) if texts else None})

            yield note

    @contextlib.contextmanager
    def generating(self, request: Request, *, purpose: str, generator: Generator) -> Iterator[NoteCompletion]:
        texts, prompt = self._tracing.texts_in_spans, request.prompt
        history = [(turn.role, turn.text) for turn in prompt.history]
        turns = [("system", prompt.instructions), *history, ("user", prompt.body)]
        attributes: dict[str, Attribute | None] = {
            names.OPERATION: "chat",
            names.PROVIDER: provider_of(generator),
            names.REQUEST_MODEL: generator.name,
            names.REQUEST_MAX_TOKENS: request.max_tokens,
            names.PURPOSE: purpose,
            names.SPAN_KIND: "LLM",
            names.INPUT_MESSAGES: _messages(turns) if texts else None,
        }
        with self._tracing.span(f"chat {generator.name}", kind="client", attributes=attributes) as span:
            yield lambda done: span.set(
                {
                    names.REQUEST_STREAM: None if done.first_s is None else True,
                    names.FIRST_CHUNK: done.first_s,
                    names.REASONING_TOKENS: done.reasoning_tokens,
                    names.INPUT_TOKENS: done.prompt_tokens,
                    names.OUTPUT_TOKENS: done.completion_tokens,
                    names.FINISH_REASONS: [done.finish],
                    names.OUTPUT_MESSAGES: _messages([("assistant", done.text)]) if texts else None,
                }
            )


def _messages(turns: Sequence[tuple[str, str]]) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in turns])
