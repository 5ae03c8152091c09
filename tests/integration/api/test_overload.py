"""HTTP under more load than it can serve: callers that leave, probes, tenants, and questions that wait for workers."""

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ragbandit.router.serving import pending
from ragbandit.shared.errors import Overloaded, TooManyRequests
from ragbandit.shared.types import Conversation, DecisionId, Query
from ragbandit.shared.types.encodings import Encoding
from tests.support.servers.http_service import QUESTION, refused, routed, worker_answers
from tests.support.waiting import until


class HeldEncoder:
    """Holds the service's encoder until it is released, and remembers what was encoded."""

    def __init__(self, service):
        self.texts, self.entered, self.released = [], threading.Event(), threading.Event()
        self._encode = service.router.encoder.encode
        service.router.encoder.encode = self

    def __call__(self, texts):
        self.entered.set()
        assert self.released.wait(20)
        self.texts.extend(texts)
        return self._encode(texts)


def depth(service):
    """How many questions, outcomes and judgements wait for their batch."""
    return sum(queue.waiting for name, queue in service.router.process.queues().items() if name != "answers")


def asked(service, question, *, path="/v1/route"):
    """A connection on which this question was sent."""
    body = b'{"question": "%s"}' % question.encode()
    link = socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    link.sendall(head.encode() + body)
    return link


def reply_on(link):
    """The whole reply; closes the connection."""
    with link, link.makefile("rb") as stream:
        return stream.read()


def measured(service, name, **labels):
    families = text_string_to_metric_families(service.http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_what_is_accepted_is_answered_soon_and_nothing_else_is_stored(serve):
    """A service that decides 80 questions a second gets 300 at once. Those that would wait over 0.5 s get 503 with
    Retry-After; the others are answered within 2 s, and only answered questions are stored.
    """
    service = serve(encoder={"max_batch": 4}, server={"max_wait_s": 0.5})
    encode = service.router.encoder.encode
    service.router.encoder.encode = lambda texts: time.sleep(0.05) or encode(texts)
    for number in range(6):
        routed(service.http, question=f"warm {number}")
    links = [asked(service, f"question {number}") for number in range(300)]
    replies = [reply_on(link) for link in links]
    answered = [reply for reply in replies if reply.startswith(b"HTTP/1.1 200")]
    refusals = [reply for reply in replies if reply.startswith(b"HTTP/1.1 503")]
    assert len(answered) + len(refusals) == 300
    assert 8 <= len(answered) <= 150
    assert all(re.search(rb"\r\nretry-after: \d+\r\n", reply) and b'"OVERLOADED"' in reply for reply in refusals)
    assert service.router.status().counters.decided == len(answered) + 6
    assert measured(service, "ragbandit_route_seconds_bucket", le="+Inf") == len(answered) + 6


def test_overload_is_refused_early(serve):
    """While max_waiting requests wait for their batch, more are 503 with Retry-After; those that wait are served."""
    service = serve(server={"max_waiting": 2})
    key = routed(service.http)["decision_id"]
    held = HeldEncoder(service)
    with ThreadPoolExecutor(3) as callers:
        calls = [callers.submit(routed, service.http)]
        assert held.entered.wait(10)
        calls += [callers.submit(routed, service.http) for _ in range(2)]
        until(lambda: depth(service) == 2)
        for path in ("/v1/route", "/v1/answer"):
            response = service.http.post(path, json={"question": QUESTION})
            assert "waiting already" in refused(response, 503, "OVERLOADED")["message"]
            assert response.headers["retry-after"] == "1"
        # Another queue: what was decided before can be judged.
        assert service.http.post("/v1/feedback", json={"decision_id": key, "rating": True}).status_code == 202
        assert service.http.get("/ready").status_code == 200
        assert measured(service, "ragbandit_requests_refused_total", queue="questions", reason="count") == 2
        held.released.set()
        assert all(call.result(20)["decision_id"] for call in calls)
    routed(service.http)


def test_callers_that_leave_are_dropped(serve):
    """Questions of callers that close their connection while waiting are not encoded or stored. One whose batch had
    begun is stored and counted as unseen: stored = answered + unseen.
    """
    service = serve()
    held = HeldEncoder(service)
    running = asked(service, "first")
    assert held.entered.wait(10)
    leaving = [asked(service, f"leaving {number}") for number in range(20)]
    staying = asked(service, "stays")
    until(lambda: depth(service) == 21)
    for link in (running, *leaving):
        link.close()
    until(lambda: measured(service, "ragbandit_requests_total", path="/v1/route", status="499") == 20)
    held.released.set()
    assert reply_on(staying).startswith(b"HTTP/1.1 200")
    assert held.texts == ["first", "stays"]
    assert service.router.status().counters.decided == 2
    until(lambda: measured(service, "ragbandit_replies_unseen_total") == 1)
    assert measured(service, "ragbandit_requests_dropped_total", queue="questions", reason="gone") == 20
    assert measured(service, "ragbandit_requests_total", path="/v1/route", status="499") == 21


def test_what_failed_is_not_counted_as_stored(serve):
    """A question that fails after its caller has left is not stored, and not counted as unseen."""
    service = serve()
    held = HeldEncoder(service)
    link = asked(service, "first")
    assert held.entered.wait(10)
    link.close()
    asked(service, "second").close()
    until(lambda: measured(service, "ragbandit_requests_total", path="/v1/route", status="499") == 1)
    service.router.database.write = None
    held.released.set()
    until(lambda: measured(service, "ragbandit_requests_total", path="/v1/route", status="499") == 2)
    assert measured(service, "ragbandit_replies_unseen_total") == 0


def test_probes_do_not_queue_behind_work(serve):
    """While every thread for reads is held, and more wait, /health, /ready, /v1/status and /metrics reply at once."""
    service = serve()
    key = routed(service.http)["decision_id"]
    opened, read = threading.Event(), service.router.decision
    service.router.decision = lambda decision_id: opened.wait(20) and read(decision_id)
    with ThreadPoolExecutor(40) as callers, httpx.Client(base_url=service.url, timeout=20) as http:
        reads = [callers.submit(http.get, f"/v1/decisions/{key}") for _ in range(40)]
        time.sleep(0.1)
        for path in ("/health", "/ready", "/v1/status", "/metrics"):
            began = time.monotonic()
            assert service.http.get(path).status_code == 200
            assert time.monotonic() - began < 10, path
        opened.set()
        assert {read.result(20).status_code for read in reads} == {200}


def test_probes_end_while_the_database_hangs(serve, monkeypatch):
    """With a database that does not reply, /v1/status is 503 in time, /metrics has what the process counts, and however
    many probes come, no more than one read runs and one waits.
    """
    monkeypatch.setattr("ragbandit.router.api.endpoints.operations.PROBE_S", 0.2)
    service = serve()
    opened, reads = threading.Event(), []

    def hang():
        reads.append(1)
        assert opened.wait(20)

    service.app.state.read_state._read = hang
    try:
        for _ in range(3):
            error = refused(service.http.get("/v1/status"), 503, "NOT_READY")
            assert "within 0.2 s" in error["message"]
            assert measured(service, "ragbandit_ledger_readable") == 0
            assert measured(service, "ragbandit_requests_total", path="/v1/status") >= 1
        assert (len(reads), service.app.state.read_state._executor._work_queue.qsize()) == (1, 1)
    finally:
        opened.set()


def test_a_tenant_has_its_share_of_the_queue(serve):
    """While two tenants ask, one of them is 429 beyond half of the queue, by the field; the other one is served."""
    service = serve(server={"max_waiting": 8, "tenant_share": 0.5})
    routed(service.http, tenant="small")
    held = HeldEncoder(service)
    with ThreadPoolExecutor(8) as callers:
        calls = [callers.submit(routed, service.http, tenant="big")]
        assert held.entered.wait(10)
        calls += [callers.submit(routed, service.http, tenant="big") for _ in range(4)]
        until(lambda: depth(service) == 4)
        reply = service.http.post("/v1/route", json={"question": QUESTION, "tenant": "big"})
        refused(reply, 429, "TOO_MANY_REQUESTS", field="tenant")
        assert reply.headers["retry-after"] == "1"
        calls.append(callers.submit(routed, service.http, tenant="small"))
        until(lambda: depth(service) == 5)
        held.released.set()
        assert all(call.result(20) for call in calls)


@pytest.mark.parametrize("limit", ["tenant_unanswered", "max_unanswered"])
def test_unanswered_questions_are_bounded(serve, limit):
    """Beyond so many questions without an answer /v1/answer is 429 for that tenant, or 503 for all, before anything is
    stored; one that is asked again is not refused, and an answer makes room.
    """
    service = serve(server={limit: 2, "answer_wait_s": 0})

    def answer(tenant="acme", **more):
        return service.http.post("/v1/answer", json={"question": QUESTION, "tenant": tenant} | more)

    place, question = service.router.process.answers.reserve, Query(text=QUESTION, tenant="acme")
    with place(question), place(question), pytest.raises(Overloaded), place(question):
        pass  # two that are decided at this moment
    keys = [answer(decision_id=f"q-{number}").json()["decision_id"] for number in range(2)]
    other = answer(tenant="other")
    if limit == "tenant_unanswered":
        refused(answer(), 429, "TOO_MANY_REQUESTS", field="tenant")
        assert other.status_code == 202
    else:
        refused(answer(), 503, "OVERLOADED")
        refused(other, 503, "OVERLOADED")
    assert int(answer().headers["retry-after"]) >= 1
    assert answer(decision_id=keys[0]).status_code == 202
    worker_answers(service, keys[0], "Bram Stoker")
    until(lambda: answer().status_code == 202)
    assert (
        service.router.process.queues()["answers"].refused["tenant" if limit == "tenant_unanswered" else "count"] >= 2
    )


def test_bytes_of_conversations_are_bounded(serve, make_decision, monkeypatch):
    """Conversations that are decided or wait for an answer take so many bytes of memory at most; a question without a
    conversation is not refused, and an answer makes room.
    """
    monkeypatch.setattr(pending, "MOST_CHATS", 2)
    answers = serve(server={"max_chat_bytes": 1024}).router.process.answers
    messages = [{"role": "user", "content": "x" * 900}]
    long = Query(text=QUESTION, conversation=Conversation(fields={}, encoding=Encoding.of(messages)))

    with answers.reserve(long), answers.reserve(long):
        with pytest.raises(TooManyRequests, match="max_chat_bytes"), answers.reserve(long):
            pass
        with answers.reserve(Query(text=QUESTION)):
            pass
    waiting = [make_decision(id=DecisionId(key), run_by="worker", query=long) for key in ("a", "b")]
    for decision in waiting:
        answers.expect_outcome(decision)
    with pytest.raises(TooManyRequests), answers.reserve(long):
        pass
    answers.release(["a"])
    with answers.reserve(long):
        pass
