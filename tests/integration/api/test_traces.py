"""Traces of the service: a request, its decision and its feedback in one trace, and no text in any of it."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk")

from tests.support.servers.http_service import routed
from tests.support.telemetry import Memory

SECRET = "Zygmunt-Przybylski"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}


@pytest.fixture
def memory(service):
    made = Memory()
    service.app.state.tracing = made.tracing
    return made


def hexed(number, width):
    return f"{number:0{width}x}"


def test_a_decision_is_in_the_trace_of_its_caller(service, memory):
    """The server's span goes on from the caller's, the decision's from that; the decision keeps its place in it."""
    reply = service.http.post("/v1/route", json={"question": f"who is {SECRET}?", "session_id": "s1"}, headers=PARENT)
    made = reply.json()
    assert made["trace_id"] == reply.headers["x-ragbandit-trace-id"] == TRACE
    server, decide = memory.span("POST /v1/route"), memory.span("ragbandit.decide")
    assert hexed(server.parent.span_id, 16) == SPAN
    assert decide.parent.span_id == server.context.span_id
    assert {hexed(span.context.trace_id, 32) for span in memory.spans} == {TRACE}
    told = decide.attributes
    assert told["ragbandit.decision.id"] == made["decision_id"]
    assert told["ragbandit.decision.arm"] == made["arm"]
    assert told["ragbandit.decision.propensity"] == made["propensity"]
    assert told["gen_ai.conversation.id"] == "s1"
    assert (server.attributes["http.response.status_code"], server.attributes["http.route"]) == (200, "/v1/route")
    kept = service.http.get(f"/v1/decisions/{made['decision_id']}").json()["request"]
    assert kept["traceparent"] == f"00-{TRACE}-{hexed(decide.context.span_id, 16)}-01"
    assert kept["tracestate"] == "vendor=1"
    assert SECRET not in memory.texts()


def test_a_repetition_in_another_trace_is_the_same_request(service, memory):
    """The trace is no part of the body: the same id with another traceparent gets the first decision."""
    first = routed(service.http, decision_id="d1")
    again = service.http.post("/v1/route", json={"question": "Who wrote Dracula?", "decision_id": "d1"}, headers=PARENT)
    assert again.status_code == 200
    assert again.json()["trace_id"] == first["trace_id"] != TRACE


def test_feedback_is_an_event_in_the_trace_of_the_decision(service, memory):
    """A rating is told with its score; a repetition is not told again; a label's gold answers never are."""
    made = routed(service.http)
    key = made["decision_id"]
    for _ in range(2):
        body = {"decision_id": key, "feedback_id": "f1", "rating": 0.5, "rater": SECRET}
        assert service.http.post("/v1/feedback", json=body).status_code in (200, 202)
    items = [{"decision_id": key, "label": [SECRET]}, {"decision_id": "unknown", "rating": 1.0}]
    service.http.post("/v1/feedback/batch", json={"items": items})
    rating, label = memory.events
    assert rating.event_name == label.event_name == "gen_ai.evaluation.result"
    assert hexed(rating.trace_id, 32) == hexed(label.trace_id, 32) == made["trace_id"]
    assert (rating.attributes["gen_ai.evaluation.name"], rating.attributes["gen_ai.evaluation.score.value"]) == (
        "rating",
        0.5,
    )
    assert "gen_ai.evaluation.score.value" not in label.attributes
    assert rating.attributes["gen_ai.response.id"] == key
    assert SECRET not in memory.texts()


def test_questions_of_a_batch_have_a_span_each(service, memory):
    """Every decision of a batch has its own span in the request's trace, and its own place."""
    items = [{"question": f"{SECRET} {n}"} for n in range(3)] + [{"question": ""}]
    replies = service.http.post("/v1/route/batch", json={"items": items}).json()["items"]
    decided = [span for span in memory.spans if span.name == "ragbandit.decide"]
    assert sorted("error.type" in span.attributes for span in decided) == [False, False, False, True]
    assert len({reply["trace_id"] for reply in replies[:3]}) == 1
    assert SECRET not in memory.texts()


def test_failures_are_told_by_their_kind_alone(service, memory, monkeypatch):
    """A fault of ours is a failed span with the class of the error, without its message, which may hold a text."""

    def broken(*_args, **_options):
        raise RuntimeError(SECRET)

    monkeypatch.setattr(service.router, "submit", broken)
    reply = service.http.post("/v1/route", json={"question": "q"}, headers={"x-request-id": "mine"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (500, "mine")
    decide = memory.span("ragbandit.decide")
    assert decide.status.status_code.name == "ERROR"
    assert decide.attributes["error.type"] == "RuntimeError"
    assert SECRET not in memory.texts()


def test_probes_have_no_span_and_every_reply_has_an_id(service, memory):
    """What is asked all the time is not traced; every reply has the caller's request id, or a new one."""
    for path in ("/health", "/ready", "/metrics", "/v1/status"):
        assert service.http.get(path, headers={"x-request-id": "mine:1"}).headers["x-request-id"] == "mine:1"
    memory.wait("GET /v1/status")
    assert [span.name for span in memory.spans] == ["GET /v1/status"]
    made = [service.http.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1] != "a b"


@pytest.mark.parametrize(
    "sent", ["nonsense", "00-" + "0" * 32 + "-" + SPAN + "-01", "ff-" + TRACE + "-" + SPAN + "-01"]
)
def test_a_wrong_traceparent_begins_a_new_trace(service, memory, sent):
    """A header that is none is passed over."""
    made = service.http.post("/v1/route", json={"question": "q"}, headers={"traceparent": sent}).json()
    assert len(made["trace_id"]) == 32
    assert made["trace_id"] != TRACE


def test_off_nothing_is_made(service):
    """Without the setting a reply names no trace, and the decision keeps none, whatever the caller sends."""
    made = service.http.post("/v1/route", json={"question": "q"}, headers=PARENT).json()
    assert "trace_id" not in made
    kept = service.http.get(f"/v1/decisions/{made['decision_id']}").json()["request"]
    assert "traceparent" not in kept


def test_off_nothing_is_imported():
    """A service and a worker without the setting load nothing that sends; a library of others may know the SDK."""
    code = (
        "import sys, json, ragbandit.router.api.app, ragbandit.workers.process;"
        "from ragbandit.router.telemetry import make_tracing;"
        "from ragbandit.router.telemetry.tracing import OFF;"
        "assert make_tracing(enabled=False, service='x', process='y') is OFF;"
        "print(json.dumps([m for m in sys.modules if m.endswith('telemetry.otel') or '.exporter' in m]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []
