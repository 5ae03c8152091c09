"""Traces of the service: a request and its decision in one trace, and no text in any of it."""

import pytest

pytest.importorskip("opentelemetry.sdk")

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
    """Probes and scrapes are not traced; every reply has the caller's request id, or a new one."""
    for path in ("/health", "/ready", "/metrics", "/v1/status"):
        assert service.http.get(path, headers={"x-request-id": "mine:1"}).headers["x-request-id"] == "mine:1"
    memory.wait("GET /v1/status")
    assert [span.name for span in memory.spans] == ["GET /v1/status"]
    made = [service.http.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1] != "a b"


def test_off_nothing_is_made(service):
    """Without the setting a reply names no trace, and the decision keeps none, whatever the caller sends."""
    decision = service.http.post("/v1/route", json={"question": "q"}, headers=PARENT).json()
    assert "trace_id" not in decision
    kept = service.http.get(f"/v1/decisions/{decision['decision_id']}").json()["request"]
    assert "traceparent" not in kept
