"""HTTP: route, answer, outcomes, cancel, and the record of a decision."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ragbandit import Client
from ragbandit.router.serving.checks.reports import make_outcome
from tests.support.servers.http_service import QUESTION, refused, routed, worker_answers


@pytest.fixture(scope="module")
def service(serve_module):
    """One service for the tests that look at decisions of their own alone; ids are of one test each."""
    return serve_module()


@pytest.fixture
def fresh(serve):
    """A service of the test's own."""
    return serve()


def test_route(http, service):
    """A routed question comes with the whole pmf, by arm as in `Decision.probabilities`, and it is committed."""
    reply = routed(http)
    assert math.isclose(sum(reply["pmf"].values()), 1.0)
    assert reply["pmf"][reply["arm"]] == reply["propensity"]
    assert set(reply["pmf"]) == {"no_retrieval", "single_step", "multi_step"}
    decision = service.router.decision(reply["decision_id"]).decision
    assert (decision.arm, decision.probabilities) == (reply["arm"], reply["pmf"])


@pytest.mark.parametrize("how", ["body", "header"])
def test_idempotent(http, how):
    """The same request under the same id, in the body or in Idempotency-Key, gets the same decision."""
    headers = {"Idempotency-Key": f"mine-{how}"} if how == "header" else {}
    body = {"question": QUESTION} | ({"decision_id": f"mine-{how}"} if how == "body" else {})
    first, second = (http.post("/v1/route", json=body, headers=headers) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert first.json()["decision_id"] == f"mine-{how}"
    timeless = [{k: v for k, v in r.json().items() if k != "route_ms"} for r in (first, second)]
    assert timeless[0] == timeless[1]
    other = http.post("/v1/route", json=body | {"question": "Who wrote Emma?"}, headers=headers)
    refused(other, 409, "CONFLICT", field="decision_id")


def test_answer_pending(fresh):
    """An answer that is not there in time is 202 with the id, and a worker has been asked for it."""
    service, http = fresh, fresh.http
    response = http.post("/v1/answer?wait_s=0.05", json={"question": QUESTION})
    assert response.status_code == 202
    reply = response.json()
    assert (reply["status"], reply["answer"]) == ("pending", None)
    assert response.headers["x-ragbandit-decision-id"] == reply["decision_id"]
    assert service.jobs.enqueued == [reply["decision_id"]]


def test_answer(fresh):
    """A request that waits gets the worker's answer, with status, steps and cost."""
    service, http = fresh, fresh.http
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, "/v1/answer?wait_s=10", json={"question": QUESTION, "decision_id": "mine-1"})
        while not service.jobs.enqueued:
            time.sleep(0.01)
        worker_answers(service, "mine-1", "Bram Stoker")
        response = waiting.result(10)
    assert response.status_code == 200
    reply = response.json()
    assert (reply["answer"], reply["status"], reply["steps"]) == ("Bram Stoker", "answered", 1.0)
    assert "llm_calls" in reply["cost"]


def test_answer_by_the_callers_arm(serve):
    """An arm that the caller's own stack runs is no unknown one to /v1/answer: the error leads to /v1/route."""
    http = serve(arms={"single_step": {}, "mine": {"run_by": "caller"}}).http
    for arms in (["mine"], ["single_step", "mine"]):
        response = http.post("/v1/answer?wait_s=0", json={"question": QUESTION, "arms": arms})
        error = refused(response, 422, "INVALID_INPUT", field="arms")
        assert "'mine' is run by your own stack" in error["message"]
        assert "/v1/route" in error["remedy"]
        assert "single_step" in error["remedy"]
    unknown = http.post("/v1/answer?wait_s=0", json={"question": QUESTION, "arms": ["nobody"]})
    assert "unknown arm 'nobody'" in refused(unknown, 422, "INVALID_INPUT", field="arms")["message"]
    assert routed(http, arms=["mine"])["arm"] == "mine"


def test_outcome(http):
    """An outcome is 202 when it is new, 200 when it is a repetition, 409 when it is another one."""
    key = routed(http)["decision_id"]
    body = {"decision_id": key, "answer": "Bram Stoker", "steps": 2, "cost": {"llm_calls": 2, "dollars": 0.003}}
    first, again = (http.post("/v1/outcomes", json=body) for _ in range(2))
    assert (first.status_code, first.json()) == (202, {"decision_id": key, "duplicate": False})
    assert (again.status_code, again.json()) == (200, {"decision_id": key, "duplicate": True})
    refused(http.post("/v1/outcomes", json=body | {"answer": "Shelley"}), 409, "CONFLICT", field="decision_id")
    refused(http.post("/v1/outcomes", json=body | {"decision_id": "nobody"}), 404, "NOT_FOUND", field="decision_id")


def test_a_stored_outcome_is_a_repetition_before_it_is_refused(http, service):
    """An outcome whose cost nothing charges is a duplicate where it is stored already; another one is refused."""
    key = routed(http)["decision_id"]
    cost = {"dollars": 0.02}
    before = make_outcome(decision_id=key, now=1.0, status="answered", answer="Bram Stoker", cost=cost)
    assert service.router.store.add_outcome(before)
    body = {"decision_id": key, "answer": "Bram Stoker", "cost": cost}
    again = http.post("/v1/outcomes", json=body)
    assert (again.status_code, again.json()) == (200, {"decision_id": key, "duplicate": True})
    assert service.router.outcome(key, answer="Bram Stoker", cost=cost) is False
    refused(http.post("/v1/outcomes", json=body | {"answer": "Shelley"}), 422, "INVALID_INPUT", field="steps")
    other = routed(http)["decision_id"]
    refused(http.post("/v1/outcomes", json=body | {"decision_id": other}), 422, "INVALID_INPUT", field="steps")
    assert http.post("/v1/outcomes", json=body | {"decision_id": other, "steps": 0}).status_code == 202


def test_an_answer_comes_from_workers_alone(http, service):
    """A stranger who knows the id of a question that workers run cannot write its answer."""
    with ThreadPoolExecutor(1) as pool:
        body = {"question": QUESTION, "decision_id": "order-42"}
        waiting = pool.submit(http.post, "/v1/answer?wait_s=10", json=body)
        while http.get("/v1/decisions/order-42").status_code == 404:
            time.sleep(0.01)
        evil = http.post("/v1/outcomes", json={"decision_id": "order-42", "answer": "EVIL"})
        refused(evil, 409, "CONFLICT", field="decision_id")
        assert "wait for it" in evil.json()["error"]["remedy"]
        outcome = make_outcome(decision_id="order-42", now=1.0, status="answered", answer="Bram Stoker")
        assert service.router.store.add_outcome(replace(outcome, run_by="worker"))
        assert waiting.result(15).json()["answer"] == "Bram Stoker"


def test_get_decision(fresh):
    """A decision shows everything known of it: pmf, scores, arm, outcome, trace, feedback, reward, learned seq."""
    service, http = fresh, fresh.http
    key = routed(http, decision_id="mine-1")["decision_id"]
    assert http.get(f"/v1/decisions/{key}").json()["state"] == "waiting"
    http.post("/v1/outcomes", json={"decision_id": key, "answer": "Bram Stoker", "steps": 1})
    http.post("/v1/feedback", json={"decision_id": key, "feedback_id": "f1", "label": ["Bram Stoker"]})
    service.router.learn()
    http.post("/v1/feedback", json={"decision_id": key, "feedback_id": "f2", "rating": False})
    shown = http.get(f"/v1/decisions/{key}").json()
    assert (shown["question"], shown["state"], shown["learned_seq"]) == (QUESTION, "learned", 1)
    assert set(shown["pmf"]) == set(shown["scores"]) == {"no_retrieval", "single_step", "multi_step"}
    assert (shown["outcome"]["answer"], shown["outcome"]["trace"], shown["outcome"]["run_by"]) == (
        "Bram Stoker",
        [],
        "caller",
    )
    assert [(item["id"], item["late"]) for item in shown["feedback"]] == [("f1", False), ("f2", True)]
    assert (shown["reward"]["quality"], shown["reward"]["cost"], shown["reward"]["value"]) == (1.0, 1.0, 0.95)
    assert (shown["reward"]["minimum"], shown["reward"]["maximum"], shown["reward"]["clipped"]) == (-1.0, 1.0, False)
    assert (shown["reward"]["terms"], shown["reward"]["preset"]) == ({"steps": 1.0}, "f1")
    assert (shown["run_by"], shown["outcome"]["made_by"]) == ("caller", {})
    assert shown["facts"]["quality"] == [0.5, 0.5, 0.5]
    assert int(shown["seed"]) == service.router.decision(key).decision.seed


def test_cancel(fresh):
    """A pending answer is cancelled with 202, as often as it is asked for; once it has ended, both edges say how."""
    service, http = fresh, fresh.http
    asked = http.post("/v1/answer", json={"question": QUESTION}, params={"wait_s": 0})
    assert asked.status_code == 202
    key = asked.json()["decision_id"]
    for _ in range(2):
        reply = http.post(f"/v1/decisions/{key}/cancel")
        assert (reply.status_code, reply.json()) == (202, {"decision_id": key, "cancelled": None, "status": "pending"})
    assert service.jobs.published == [f"cancel:{key}"] * 2
    outcome = make_outcome(decision_id=key, now=time.time(), status="failed", stop_reason="cancelled")
    service.router.store.add_outcome(replace(outcome, run_by="worker"))
    ended = {"decision_id": key, "cancelled": True, "status": "failed"}
    with Client(service.url) as client:
        assert client.cancel(key) == ended
    assert http.post(f"/v1/decisions/{key}/cancel").status_code == 200
    waited = http.post("/v1/answer", json={"question": QUESTION, "decision_id": key})
    assert (waited.status_code, waited.json()["stop_reason"]) == (200, "cancelled")


def test_explanation(http):
    """It holds the record, the draw and the reasons; the drawn arm's edges hold u."""
    decision = routed(http)
    path = f"/v1/decisions/{decision['decision_id']}"
    reply = http.get(f"{path}/explanation")
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body["record"] == http.get(path).json()
    assert reply.headers["x-ragbandit-decision-id"] == body["decision_id"] == decision["decision_id"]
    (drawn,) = (arm for arm in body["arms"] if arm["drawn"])
    assert drawn["arm"] == decision["arm"]
    assert drawn["low"] <= body["draw"]["u"] < drawn["high"]
    assert body["reasons"]
    refused(http.get("/v1/decisions/unknown/explanation"), 404, "NOT_FOUND")
