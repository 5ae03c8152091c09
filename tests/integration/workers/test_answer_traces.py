"""Traces of answers: the arm's run goes on from the decision, a retry links to it, every call has a span."""

import json
from dataclasses import replace

import pytest

from ragbandit.shared.types import Sent

pytest.importorskip("opentelemetry.sdk")

from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.types import Query
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from tests.support.arms.answer_jobs import answer_next, decision_for, set_tries
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply
from tests.support.telemetry import Memory

SECRET = "Zygmunt-Przybylski"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def run(work, *, tries=0, generator=None):
    """What a worker tells of an answer; tries: begun before."""
    memory = Memory()
    passage = Passage(id="p1", title="Dracula", text=f"{SECRET} wrote Dracula.")
    context = work(retriever=MemoryRetriever([passage]), generator=generator)
    context.tracing = memory.tracing
    sent = Sent(traceparent=f"00-{TRACE}-{SPAN}-01", request_id="r1")
    decision = decision_for("single_step")
    query = Query(text=f"Did {SECRET} write Dracula?", sent=sent, session="s1")
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


def reply(*, stream=True):
    """A server's answer with two tokens of thoughts, in pieces or whole."""
    usage = {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}
    usage |= {"completion_tokens_details": {"reasoning_tokens": 2}}
    base = {"id": "1", "created": 1, "model": "gpt"}
    if not stream:
        message = {"role": "assistant", "content": "So the answer is: Bram Stoker."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return json_reply({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    pieces = [{"content": "So the answer is:"}, {"content": " Bram Stoker."}, {}]
    chunks = [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"} for delta in pieces]
    parts = [{**base, "object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
    parts[-1]["usage"] = usage
    body = "".join(f"data: {json.dumps(part)}\n\n" for part in [*parts]) + "data: [DONE]\n\n"
    return Scripted(body=body.encode(), headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize("stream", [True, False])
def test_what_a_server_says_of_a_call(work, monkeypatch, stream):
    """Pieces, the first one's time, tokens and thoughts are in the span."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ScriptedHttp(reply(stream=stream)) as server:
        options = OpenAiOptions(base_url=f"{server.url}/v1", stream=stream)
        memory = run(work, generator=OpenAiGenerator("gpt", options=options))
    call = memory.span("chat gpt")
    first = call.attributes.get("gen_ai.response.time_to_first_chunk")
    assert call.attributes.get("gen_ai.request.stream") is (True if stream else None)
    assert call.attributes["gen_ai.usage.reasoning.output_tokens"] == 2
    said = {"provider.name": "openai", "request.model": "gpt", "usage.input_tokens": 40, "usage.output_tokens": 9}
    assert {name: call.attributes[f"gen_ai.{name}"] for name in said} == said
    assert first > 0.0 if stream else first is None


@pytest.mark.parametrize("headers", [{}, {"Traceparent": "from-the-call"}], ids=["by default", "switched on"])
def test_a_trace_goes_on_in_the_models_server(work, monkeypatch, headers):
    """If the header traceparent is configured, the server gets the span of its call; by default it gets none."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ScriptedHttp(reply()) as server:
        options = OpenAiOptions(base_url=f"{server.url}/v1", headers=headers)
        call = run(work, generator=OpenAiGenerator("gpt", options=options)).span("chat gpt")
        [(_, received, _)] = server.seen
    sent = {name.lower(): value for name, value in received.items()}.get("traceparent")
    assert sent == (f"00-{TRACE}-{call.context.span_id:016x}-01" if headers else None)


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
