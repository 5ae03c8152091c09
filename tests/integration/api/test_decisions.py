"""HTTP: route, answer, outcomes, cancel, and the record of a decision."""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ragbandit import Client
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.shared import errors
from ragbandit.workers.cli import app
from tests.support.servers.http_service import QUESTION, Service, refused, routed, worker_answers


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for the tests that look at decisions of their own alone; ids are of one test each."""
    given = {"data_dir": str(tmp_path_factory.mktemp("decisions")), "encoder": {"model": "hashing", "dimension": 8}}
    running = Service(Settings.model_validate(given))
    yield running
    running.close()


@pytest.fixture
def fresh(serve):
    """A service of the test's own."""
    return serve()


def test_route(http, service):
    """A routed question comes with the whole pmf, and it is committed."""
    reply = routed(http)
    assert math.isclose(sum(reply["pmf"].values()), 1.0)
    assert reply["pmf"][reply["arm"]] == reply["propensity"]
    assert set(reply["pmf"]) == {"no_retrieval", "single_step", "multi_step"}
    assert service.router.decision(reply["decision_id"]).decision.arm == reply["arm"]


def test_headers(http):
    """What a proxy may want stands in headers, equal to the body."""
    response = http.post("/v1/route", json={"question": QUESTION})
    body, headers = response.json(), response.headers
    assert headers["x-ragbandit-decision-id"] == body["decision_id"]
    assert headers["x-ragbandit-strategy"] == body["arm"]
    assert headers["x-ragbandit-policy-version"] == body["version"]
    assert float(headers["x-ragbandit-propensity"]) == body["propensity"]
    assert headers["x-ragbandit-explored"] == str(body["explored"]).lower()


def test_route_with_everything(http):
    """Context, arms, budget and tenant are taken and shown again."""
    sent = {
        "decision_id": "mine-3",
        "context": {"user": "u1", "n": 3, "share": 0.5, "new": True, "old": None},
        "arms": ["multi_step", "no_retrieval"],
        "budget": {"rounds": 2, "passages": 6, "tokens": 900, "seconds": 4.5, "dollars": 0.01},
        "tenant": "acme",
    }
    reply = routed(http, **sent)
    assert list(reply["pmf"]) == ["multi_step", "no_retrieval"]
    shown = http.get("/v1/decisions/mine-3").json()
    for key in ("decision_id", "context", "budget", "tenant"):
        assert shown[key] == sent[key]


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


@pytest.mark.parametrize("path", ["/v1/route", "/v1/answer?wait_s=0"])
def test_two_ids(unmoved, path):
    """A header and a body that name two ids are refused, and nothing is decided under either."""
    body, headers = {"question": QUESTION, "decision_id": "mine-1"}, {"Idempotency-Key": "mine-2"}
    error = refused(unmoved.post(path, json=body, headers=headers), 422, "INVALID_INPUT", field="Idempotency-Key")
    assert all(said in error["message"] for said in ("mine-1", "mine-2", "decision_id"))
    for key in ("mine-1", "mine-2"):
        assert unmoved.get(f"/v1/decisions/{key}").status_code == 404


def test_the_same_id_twice(http):
    """A header and a body that name the same id are one id."""
    body, headers = {"question": QUESTION, "decision_id": "mine-5"}, {"Idempotency-Key": "mine-5"}
    assert http.post("/v1/route", json=body, headers=headers).json()["decision_id"] == "mine-5"


@pytest.mark.parametrize("key", ["", "no spaces", "x" * 65])
def test_a_key_that_is_no_id(unmoved, key):
    """A header that is no id is refused by its own name."""
    headers = {"Idempotency-Key": key}
    for path, body in (
        ("/v1/route", {"question": QUESTION}),
        ("/v1/feedback", {"decision_id": "any", "rating": True}),
    ):
        refused(unmoved.post(path, json=body, headers=headers), 422, "INVALID_INPUT", field="Idempotency-Key")


def test_same_id_for_route_and_answer(http):
    """A decision to be run by the caller is another request than one to be run by workers."""
    routed(http, decision_id="mine-6")
    response = http.post("/v1/answer?wait_s=0", json={"question": QUESTION, "decision_id": "mine-6"})
    refused(response, 409, "CONFLICT", field="decision_id")


def test_concurrent_routes(http, service):
    """Fifty requests at once get fifty decisions, each for its own question."""

    def ask(number: int) -> tuple[str, str]:
        return f"question {number}", routed(http, question=f"question {number}")["decision_id"]

    with ThreadPoolExecutor(50) as pool:
        asked = list(pool.map(ask, range(50)))
    assert len({key for _, key in asked}) == 50
    assert all(service.router.decision(key).decision.query.text == question for question, key in asked)
    assert service.router.verify().ok


def test_concurrent_retries(fresh):
    """Fifty retries of one request at once get one decision."""
    service, http = fresh, fresh.http
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda _: routed(http, decision_id="mine-1"), range(50)))
    assert len({(reply["decision_id"], reply["arm"], reply["propensity"]) for reply in replies}) == 1
    assert service.router.status().counters.decided == 1


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


def test_answer_says_who_made_it(http, service):
    """A decision that a worker ran shows who ran it and what the arm was made of."""
    http.post("/v1/answer?wait_s=0", json={"question": QUESTION, "decision_id": "mine-8"})
    made = made_outcome(decision_id="mine-8", now=1.0, status="answered", answer="Bram Stoker", steps=1.0)
    service.router.store.add_outcome(replace(made, run_by="worker", made_by={"generator": "scripted", "rounds": 2}))
    shown = http.get("/v1/decisions/mine-8").json()
    assert (shown["run_by"], shown["outcome"]["run_by"]) == ("worker", "worker")
    assert shown["outcome"]["made_by"] == {"generator": "scripted", "rounds": 2}


def test_answer_again(http, service):
    """The same request after the answer came gets it at once."""
    body = {"question": QUESTION, "decision_id": "mine-9"}
    assert http.post("/v1/answer?wait_s=0", json=body).status_code == 202
    worker_answers(service, "mine-9", "Bram Stoker")
    response = http.post("/v1/answer?wait_s=0", json=body)
    assert (response.status_code, response.json()["answer"]) == (200, "Bram Stoker")


def test_answer_without_queue(fresh):
    """With the queue down an answer is pending, not an error: the recovery loop will request it."""
    service, http = fresh, fresh.http
    service.jobs.broken = True
    assert http.post("/v1/answer?wait_s=0", json={"question": QUESTION}).status_code == 202
    assert service.router.notifier.failed_notifications == 1


def test_answer_without_arms(serve):
    """A service none of whose arms is run by workers refuses /v1/answer and says what to use."""
    arms = {"single_step": {"run_by": "caller"}}
    response = serve(arms=arms).http.post("/v1/answer", json={"question": QUESTION})
    assert "/v1/route" in refused(response, 422, "INVALID_INPUT", field="arms")["remedy"]


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


@pytest.mark.parametrize("wait", ["-1", "601", "nan", "soon"])
def test_answer_bad_wait(unmoved, wait):
    """A wait that is no number in [0, 600] is refused, and nothing is decided."""
    response = unmoved.post(f"/v1/answer?wait_s={wait}", json={"question": QUESTION})
    refused(response, 422, "INVALID_INPUT", field="wait_s")


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
    before = made_outcome(decision_id=key, now=1.0, status="answered", answer="Bram Stoker", cost=cost)
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
        made = made_outcome(decision_id="order-42", now=1.0, status="answered", answer="Bram Stoker")
        assert service.router.store.add_outcome(replace(made, run_by="worker"))
        assert waiting.result(15).json()["answer"] == "Bram Stoker"


def test_concurrent_outcomes(http, service):
    """Outcomes that come at the same time are each told their own word, and all of them are kept."""
    keys = [routed(http)["decision_id"] for _ in range(20)]

    def report(key: str) -> int:
        return http.post("/v1/outcomes", json={"decision_id": key, "answer": "Bram Stoker"}).status_code

    with ThreadPoolExecutor(20) as pool:
        codes = list(pool.map(report, [*keys, *keys, "nobody"]))
    assert sorted(codes) == [200] * 20 + [202] * 20 + [404]
    assert set(service.router.store.outcomes_by_id(keys)) == set(keys)


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


def test_get_decision_unknown(unmoved):
    """An unknown decision is 404, something that is no id is 422."""
    refused(unmoved.get("/v1/decisions/nobody"), 404, "NOT_FOUND", field="decision_id")
    refused(unmoved.get("/v1/decisions/no%20id"), 422, "INVALID_INPUT", field="decision_id")


def test_cancel(fresh):
    """A pending answer is cancelled with 202, as often as it is asked for; once it has ended, all edges say how."""
    service, http = fresh, fresh.http
    asked = http.post("/v1/answer", json={"question": QUESTION}, params={"wait_s": 0})
    assert asked.status_code == 202
    key = asked.json()["decision_id"]
    for _ in range(2):
        reply = http.post(f"/v1/decisions/{key}/cancel")
        assert (reply.status_code, reply.json()) == (
            202,
            {"decision_id": key, "cancelled": None, "status": "pending"},
        )
    assert service.jobs.published == [f"cancel:{key}"] * 2
    made = made_outcome(decision_id=key, now=time.time(), status="failed", stop_reason="cancelled")
    service.router.store.add_outcome(replace(made, run_by="worker"))
    ended = {"decision_id": key, "cancelled": True, "status": "failed"}
    with Client(service.url) as client:
        assert client.cancel(key) == ended
    assert json.loads(CliRunner().invoke(app, ["cancel", key, "--url", service.url, "--json"]).stdout) == ended
    assert http.post(f"/v1/decisions/{key}/cancel").status_code == 200
    waited = http.post("/v1/answer", json={"question": QUESTION, "decision_id": key})
    assert (waited.status_code, waited.json()["stop_reason"]) == (200, "cancelled")


def test_cancel_is_refused(http):
    """What your own stack runs is a conflict with a remedy, an unknown id is 404, and no id is 422."""
    conflict = http.post(f"/v1/decisions/{routed(http)['decision_id']}/cancel")
    assert "report the outcome" in refused(conflict, 409, "CONFLICT", field="decision_id")["remedy"]
    unknown = refused(http.post("/v1/decisions/nobody/cancel"), 404, "NOT_FOUND", field="decision_id")
    assert unknown["remedy"] == "use the decision id that route or answer gave"
    refused(http.post("/v1/decisions/a%20b/cancel"), 422, "INVALID_INPUT", field="decision_id")


@pytest.mark.parametrize("key", ["{}?x=1", "{}#x"])
def test_an_id_is_sent_as_it_is(service, http, key):
    """The client asks for the very id it is given, also where a part of it alone would be that of a decision."""
    sent = key.format(routed(http)["decision_id"])
    with Client(service.url) as client:
        for ask in (client.decision, client.cancel):
            with pytest.raises(errors.InvalidInput) as caught:
                ask(sent)
            assert caught.value.field == "decision_id"
