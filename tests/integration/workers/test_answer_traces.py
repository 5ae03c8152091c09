"""Traces of answers: the arm's run goes on from the decision, a retry links to it, every call has a span."""

from dataclasses import replace

import pytest

pytest.importorskip("opentelemetry.sdk")

from ragbandit.shared.types import Query
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.memory import MemoryRetriever
from tests.support.arms.answer_jobs import answer_next, decision_for, set_tries
from tests.support.telemetry import Memory

SECRET = "Zygmunt-Przybylski"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def run(work, *, tries=0):
    """What a worker tells of an answer; tries: begun before."""
    memory = Memory()
    passage = Passage(id="p1", title="Dracula", text=f"{SECRET} wrote Dracula.")
    context = work(retriever=MemoryRetriever([passage]))
    context.tracing = memory.tracing
    request = {"traceparent": f"00-{TRACE}-{SPAN}-01", "request_id": "r1"}
    decision = decision_for("single_step")
    query = Query(text=f"Did {SECRET} write Dracula?", request=request, session="s1")
    context.store.add_decisions([replace(decision, id="traced", query=replace(query, id="traced"))])
    context.queue.drop("d1")
    set_tries(context, tries)
    answer_next(context)
    return memory


def test_the_first_run_is_a_part_of_the_decision(work):
    """Workflow, retrieval and the model's call are in the caller's trace, with tokens and without a text."""
    memory = run(work)
    workflow = memory.span("invoke_workflow single_step")
    assert (f"{workflow.context.trace_id:032x}", f"{workflow.parent.span_id:016x}") == (TRACE, SPAN)
    retrieval, call = (next(s for s in memory.spans if s.name.startswith(name)) for name in ("retrieval ", "chat "))
    assert retrieval.parent.span_id == call.parent.span_id == workflow.context.span_id
    assert retrieval.attributes["gen_ai.operation.name"] == "retrieval"
    assert retrieval.attributes["ragbandit.passages"] == 1
    assert call.attributes["gen_ai.usage.input_tokens"] > 0
    assert call.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert workflow.attributes["gen_ai.conversation.id"] == "s1"
    assert workflow.attributes["ragbandit.outcome.status"] == "answered"
    assert SECRET not in memory.texts()


def test_a_retry_begins_a_trace_and_links_to_the_decision(work):
    """A question whose first run was lost has a root of its own for the second."""
    workflow = run(work, tries=1).span("invoke_workflow single_step")
    assert workflow.parent is None
    assert f"{workflow.context.trace_id:032x}" != TRACE
    (link,) = workflow.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert workflow.attributes["ragbandit.attempt"] == 2


def test_texts_are_told_where_that_is_asked(work, monkeypatch):
    """With OpenTelemetry's own variable prompts, answers and passages are in the spans."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    memory = run(work)
    retrieval, call = (next(s for s in memory.spans if s.name.startswith(name)) for name in ("retrieval ", "chat "))
    assert SECRET in retrieval.attributes["gen_ai.retrieval.query.text"]
    assert SECRET in retrieval.attributes["gen_ai.retrieval.documents"]
    assert SECRET in call.attributes["gen_ai.input.messages"]
    assert "Bram Stoker" in call.attributes["gen_ai.output.messages"]
