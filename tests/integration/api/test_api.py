"""The HTTP surface over a real uvicorn: every endpoint, every code, and what the client makes of it."""

import asyncio
import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest
import typer
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from pydantic import TypeAdapter
from typer.testing import CliRunner

from ragbandit import Client
from ragbandit.router import errors
from ragbandit.router.api.app import create_app
from ragbandit.router.api.requests import FeedbackBatchBody, FeedbackBody, OutcomeBody, RouteBody
from ragbandit.router.api.responses import REPLIES
from ragbandit.router.cli.service import add_verbs
from ragbandit.router.config.settings import Settings
from ragbandit.router.jobs.queue import MemoryJobs, RedisJobs, connect
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.validation import made_outcome

QUESTION = "Who wrote Dracula?"


class Service:
    """A uvicorn in a thread; `router` is what it serves."""

    def __init__(self, settings) -> None:
        self.jobs = MemoryJobs()
        self.app = create_app(lambda: Router.open(settings, jobs=self.jobs))
        config = uvicorn.Config(self.app, port=0, log_level="warning", ws="none", loop="asyncio", lifespan="on")
        self._server = uvicorn.Server(config)
        # Signals belong to pytest: the server is run without its handlers.
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server._serve()), name="uvicorn")
        self._thread.start()
        give_up = time.monotonic() + 20
        while not self._server.started:
            assert self._thread.is_alive(), "uvicorn did not start"
            assert time.monotonic() < give_up, "uvicorn did not start in time"
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=30)

    @property
    def router(self) -> Router:
        return self.app.state.router

    def close(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def serve(settings):
    """A factory of services; all are stopped at the end of the test."""
    running: list[Service] = []

    def start(**given) -> Service:
        running.append(Service(settings(**given)))
        return running[-1]

    yield start
    for service in running:
        service.close()


@pytest.fixture
def service(serve):
    return serve()


@pytest.fixture
def http(service):
    return service.http


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One service for the tests that only send what is refused."""
    settings = {"data_dir": str(tmp_path_factory.mktemp("shared")), "encoder": {"model": "hashing", "dimension": 8}}
    running = Service(Settings.model_validate(settings))
    yield running
    running.close()


@pytest.fixture
def unmoved(shared):
    """The shared service's client; whatever the test sends must leave no decision and no feedback."""
    counters = shared.router.status().counters
    yield shared.http
    assert shared.router.status().counters == counters


def routed(http, **more) -> dict:
    response = http.post("/v1/route", json={"question": QUESTION} | more)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response, status: int, code: str, *, field: str | None = None) -> dict:
    """Every error has one shape: stable code, message, field, remedy."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"code", "message", "field", "remedy"}
    assert error["code"] == code
    assert error["message"]
    if field is not None:
        assert error["field"] == field
    return error


def worker_answers(service, decision_id: str, answer: str) -> None:
    made = made_outcome(decision_id=decision_id, now=time.time(), status="answered", answer=answer, steps=1.0)
    service.router.store.add_outcome(replace(made, run_by="worker"))


# ------------------------------------------------------------------------------------------------------- deciding


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
        "decision_id": "mine-1",
        "context": {"user": "u1", "n": 3, "share": 0.5, "new": True, "old": None},
        "arms": ["multi_step", "no_retrieval"],
        "budget": {"rounds": 2, "passages": 6, "tokens": 900, "seconds": 4.5, "dollars": 0.01},
        "tenant": "acme",
    }
    reply = routed(http, **sent)
    assert list(reply["pmf"]) == ["multi_step", "no_retrieval"]
    shown = http.get("/v1/decisions/mine-1").json()
    for key in ("decision_id", "context", "budget", "tenant"):
        assert shown[key] == sent[key]


@pytest.mark.parametrize("how", ["body", "header"])
def test_idempotent(http, how):
    """The same request under the same id, in the body or in Idempotency-Key, gets the same decision."""
    headers = {"Idempotency-Key": "mine-1"} if how == "header" else {}
    body = {"question": QUESTION} | ({"decision_id": "mine-1"} if how == "body" else {})
    first, second = (http.post("/v1/route", json=body, headers=headers) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert first.json()["decision_id"] == "mine-1"
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
    body, headers = {"question": QUESTION, "decision_id": "mine-1"}, {"Idempotency-Key": "mine-1"}
    assert http.post("/v1/route", json=body, headers=headers).json()["decision_id"] == "mine-1"


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
    routed(http, decision_id="mine-1")
    response = http.post("/v1/answer?wait_s=0", json={"question": QUESTION, "decision_id": "mine-1"})
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


def test_concurrent_retries(http, service):
    """Fifty retries of one request at once get one decision."""
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda _: routed(http, decision_id="mine-1"), range(50)))
    assert len({(reply["decision_id"], reply["arm"], reply["propensity"]) for reply in replies}) == 1
    assert service.router.status().counters.decided == 1


# ------------------------------------------------------------------------------------------------------ answering


def test_answer_pending(http, service):
    """An answer that is not there in time is 202 with the id, and a worker has been asked for it."""
    response = http.post("/v1/answer?wait_s=0.05", json={"question": QUESTION})
    assert response.status_code == 202
    reply = response.json()
    assert (reply["status"], reply["answer"]) == ("pending", None)
    assert response.headers["x-ragbandit-decision-id"] == reply["decision_id"]
    assert service.jobs.enqueued == [reply["decision_id"]]


def test_answer(http, service):
    """A request that waits gets the worker's answer, with status, steps and cost."""
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
    http.post("/v1/answer?wait_s=0", json={"question": QUESTION, "decision_id": "mine-1"})
    made = made_outcome(decision_id="mine-1", now=1.0, status="answered", answer="Bram Stoker", steps=1.0)
    service.router.store.add_outcome(replace(made, run_by="worker", made_by={"generator": "scripted", "rounds": 2}))
    shown = http.get("/v1/decisions/mine-1").json()
    assert (shown["run_by"], shown["outcome"]["run_by"]) == ("worker", "worker")
    assert shown["outcome"]["made_by"] == {"generator": "scripted", "rounds": 2}


def test_answer_again(http, service):
    """The same request after the answer came gets it at once."""
    body = {"question": QUESTION, "decision_id": "mine-1"}
    assert http.post("/v1/answer?wait_s=0", json=body).status_code == 202
    worker_answers(service, "mine-1", "Bram Stoker")
    response = http.post("/v1/answer?wait_s=0", json=body)
    assert (response.status_code, response.json()["answer"]) == (200, "Bram Stoker")


def test_answer_without_queue(http, service):
    """With the queue down an answer is pending, not an error: the recovery loop will request it."""
    service.jobs.broken = True
    assert http.post("/v1/answer?wait_s=0", json={"question": QUESTION}).status_code == 202
    assert service.router.failed_notifications == 1


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


# -------------------------------------------------------------------------------------------- outcomes and feedback


def test_outcome(http):
    """An outcome is 202 when it is new, 200 when it is a repetition, 409 when it is another one."""
    key = routed(http)["decision_id"]
    body = {"decision_id": key, "answer": "Bram Stoker", "steps": 2, "cost": {"llm_calls": 2, "dollars": 0.003}}
    first, again = (http.post("/v1/outcomes", json=body) for _ in range(2))
    assert (first.status_code, first.json()) == (202, {"decision_id": key, "duplicate": False})
    assert (again.status_code, again.json()) == (200, {"decision_id": key, "duplicate": True})
    refused(http.post("/v1/outcomes", json=body | {"answer": "Shelley"}), 409, "CONFLICT", field="decision_id")
    refused(http.post("/v1/outcomes", json=body | {"decision_id": "nobody"}), 404, "NOT_FOUND", field="decision_id")


def test_concurrent_outcomes(http, service):
    """Outcomes that come at the same time are each told their own word, and all of them are kept."""
    keys = [routed(http)["decision_id"] for _ in range(20)]

    def report(key: str) -> int:
        return http.post("/v1/outcomes", json={"decision_id": key, "answer": "Bram Stoker"}).status_code

    with ThreadPoolExecutor(20) as pool:
        codes = list(pool.map(report, [*keys, *keys, "nobody"]))
    assert sorted(codes) == [200] * 20 + [202] * 20 + [404]
    assert set(service.router.store.outcomes_by_id(keys)) == set(keys)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"status": "done"}, "status"),
        ({"steps": -1}, "steps"),
        ({"cost": {"llm_calls": 1.5}}, "cost.llm_calls"),
        ({"cost": {"euros": 1}}, "cost"),
        ({"cost": {"passages": 10**400}}, "cost.passages"),
        ({"stop_reason": "x" * 65}, "stop_reason"),
        ({"answer": 7}, "answer"),
        ({"cost": {"dollars": 0.02}}, "steps"),
    ],
)
def test_bad_outcome(shared, body, field):
    """An outcome that cannot be used is 422 and names the field."""
    key = routed(shared.http)["decision_id"]
    refused(shared.http.post("/v1/outcomes", json={"decision_id": key} | body), 422, "INVALID_INPUT", field=field)


def test_feedback(http, service):
    """Feedback is 202 when it is new, 200 when it is a repetition, 409 with another body, 404 for nobody."""
    key = routed(http)["decision_id"]
    body = {"decision_id": key, "feedback_id": "f1", "rating": 4, "scale": "1-5"}
    first, again = (http.post("/v1/feedback", json=body) for _ in range(2))
    kept = {"feedback_id": "f1", "duplicate": False, "late": False, "waiting_for": "outcome"}
    assert (first.status_code, first.json()) == (202, kept)
    assert (again.status_code, again.json()) == (200, kept | {"duplicate": True})
    refused(http.post("/v1/feedback", json=body | {"rating": 5}), 409, "CONFLICT", field="feedback_id")
    unknown = body | {"decision_id": "nobody", "feedback_id": "f2"}
    refused(http.post("/v1/feedback", json=unknown), 404, "NOT_FOUND", field="decision_id")
    assert service.router.decision(key).feedback[0].value == 0.75


def test_feedback_by_header(http):
    """Idempotency-Key is the feedback's id where the body names none."""
    key = routed(http)["decision_id"]
    sent = {"json": {"decision_id": key, "rating": True}, "headers": {"Idempotency-Key": "f1"}}
    assert [http.post("/v1/feedback", **sent).status_code for _ in range(2)] == [202, 200]


def test_feedback_with_two_ids(shared):
    """A header that names another id than the body's feedback_id is refused, and nothing is kept."""
    key = routed(shared.http)["decision_id"]
    body, headers = {"decision_id": key, "feedback_id": "f1", "rating": True}, {"Idempotency-Key": "f2"}
    response = shared.http.post("/v1/feedback", json=body, headers=headers)
    assert "feedback_id" in refused(response, 422, "INVALID_INPUT", field="Idempotency-Key")["message"]
    assert shared.router.decision(key).feedback == ()


def test_feedback_late(http, service):
    """Feedback after learning is accepted and said to be late."""
    key = routed(http)["decision_id"]
    http.post("/v1/feedback", json={"decision_id": key, "reward": 0.5})
    assert service.router.learn() == 1
    response = http.post("/v1/feedback", json={"decision_id": key, "reward": 1.0})
    assert (response.status_code, response.json()["late"]) == (202, True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "feedback"),
        ({"rating": True, "reward": 0.5}, "feedback"),
        ({"rating": 4}, "rating"),
        ({"rating": 0, "scale": "1-5"}, "rating"),
        ({"rating": 0.5, "scale": "percent"}, "scale"),
        ({"reward": 1.5}, "reward"),
        ({"reward": 10**400}, "reward"),
        ({"label": []}, "label"),
        ({"label": [""]}, "label"),
        ({"label": ["a"] * 101}, "label"),
        ({"rating": "good"}, None),
        ({"rating": True, "source": "robot"}, "source"),
        ({"rating": True, "feedback_id": "no spaces"}, "feedback_id"),
        ({"rating": True, "feedback_id": ""}, "feedback_id"),
        ({"rating": True, "stars": 5}, "stars"),
    ],
)
def test_bad_feedback(shared, body, field):
    """Feedback that cannot be used is 422, names the field, and leaves nothing."""
    key = routed(shared.http)["decision_id"]
    refused(shared.http.post("/v1/feedback", json={"decision_id": key} | body), 422, "INVALID_INPUT", field=field)
    assert shared.router.decision(key).feedback == ()


def test_batch(http):
    """A batch gives each item its own word, in order, whatever happens to its neighbours."""
    key = routed(http)["decision_id"]
    items = [
        {"decision_id": key, "feedback_id": "f1", "rating": True},
        {"decision_id": key, "feedback_id": "f1", "rating": True},
        {"decision_id": key, "feedback_id": "f1", "rating": False},
        {"decision_id": "nobody", "rating": True},
        {"decision_id": key, "rating": 7},
        {"decision_id": key, "feedback_id": "f2", "label": "Bram Stoker"},
        {"decision_id": key, "rating": True, "stars": 5},
        {"rating": True},
    ]
    response = http.post("/v1/feedback/batch", json={"items": items})
    assert response.status_code == 202
    got = response.json()["items"]
    assert [item.get("error", {}).get("code") for item in got] == [
        None,
        None,
        "CONFLICT",
        "NOT_FOUND",
        "INVALID_INPUT",
        None,
        "INVALID_INPUT",
        "INVALID_INPUT",
    ]
    assert [got[index]["error"]["field"] for index in (6, 7)] == ["stars", "decision_id"]
    assert [got[index]["duplicate"] for index in (0, 1, 5)] == [False, True, False]


def test_lone_surrogate_in_a_batch(http):
    """An item with text that UTF-8 cannot spell is refused for itself; the others have their receipts."""
    key = routed(http)["decision_id"]
    body = rb'{"items": [{"decision_id": "%b", "rating": true}, {"decision_id": "x", "rating": "\ud800"}]}'
    headers = {"content-type": "application/json"}
    response = http.post("/v1/feedback/batch", content=body % key.encode(), headers=headers)

    assert response.status_code == 202
    kept, wrong = response.json()["items"]
    assert kept["duplicate"] is False
    assert wrong["error"]["field"] == "rating"


def test_batch_size(http):
    """A batch has between one and a thousand items."""
    item = {"decision_id": routed(http)["decision_id"], "rating": True}
    refused(http.post("/v1/feedback/batch", json={"items": []}), 422, "INVALID_INPUT", field="items")
    refused(http.post("/v1/feedback/batch", json={"items": [item] * 1001}), 422, "INVALID_INPUT", field="items")
    response = http.post("/v1/feedback/batch", json={"items": [item] * 1000})
    assert response.status_code == 202
    assert len({got["feedback_id"] for got in response.json()["items"]}) == 1000


def test_get_decision(http, service):
    """A decision shows everything known of it: pmf, scores, arm, outcome, trace, feedback, reward, learned seq."""
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
    assert shown["facts"]["quality"] == [0.0, 0.0, 0.0]
    assert shown["facts"]["cold_start_floor"] == dict.fromkeys(shown["pmf"], 0.05)
    assert int(shown["seed"]) == service.router.decision(key).decision.seed


def test_get_decision_unknown(unmoved):
    """An unknown decision is 404, something that is no id is 422."""
    refused(unmoved.get("/v1/decisions/nobody"), 404, "NOT_FOUND", field="decision_id")
    refused(unmoved.get("/v1/decisions/no%20id"), 422, "INVALID_INPUT", field="decision_id")


# -------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"question": ""}, "question"),
        ({"question": " \t\n"}, "question"),
        ({"question": "a\x00b"}, "question"),
        ({"question": "x" * 100_001}, "question"),
        ({"question": 7}, "question"),
        ({}, "question"),
        ({"question": QUESTION, "arms": []}, "arms"),
        ({"question": QUESTION, "arms": ["nobody"]}, "arms"),
        ({"question": QUESTION, "arms": ["single_step", "single_step"]}, "arms"),
        ({"question": QUESTION, "colour": "red"}, "colour"),
        ({"question": QUESTION, "budget": {"rounds": 0}}, "budget.rounds"),
        ({"question": QUESTION, "budget": {"rounds": 10**400}}, "budget.rounds"),
        ({"question": QUESTION, "budget": {"euros": 1}}, "budget.euros"),
        ({"question": QUESTION, "decision_id": "no spaces"}, "decision_id"),
        ({"question": QUESTION, "decision_id": "x" * 65}, "decision_id"),
        ({"question": QUESTION, "tenant": ""}, "tenant"),
        ({"question": QUESTION, "context": {"deep": {"er": 1}}}, None),
    ],
)
def test_bad_question(unmoved, body, field):
    """A question that cannot be routed is 422, names the field and the remedy, and nothing is decided."""
    error = refused(unmoved.post("/v1/route", json=body), 422, "INVALID_INPUT", field=field)
    assert error["remedy"]


@pytest.mark.parametrize(
    "body",
    [
        rb'{"question": "\ud800"}',
        rb'{"question": "x", "\ud800": 1}',
        rb'{"question": "x", "context": {"\ud800": "y"}}',
        rb'{"question": "x", "arms": ["\ud800"]}',
        rb'{"question": "x", "decision_id": "\ud800"}',
        rb'{"question": "x", "tenant": "\ud800"}',
        rb'{"question": "x", "budget": {"seconds": "\ud800"}}',
    ],
)
def test_lone_surrogate(unmoved, body):
    """Text that JSON can spell but UTF-8 cannot is 422 wherever it stands."""
    refused(unmoved.post("/v1/route", content=body, headers={"content-type": "application/json"}), 422, "INVALID_INPUT")


@pytest.mark.parametrize(
    "body",
    [
        b'{"question": "\xff\xfe"}',
        b'{"question": ',
        b"",
        b"\xff" * 10,
        b"[" * 100_000,
        b'{"question": 1' + b"0" * 5000 + b"}",
    ],
    ids=["latin", "cut", "empty", "bytes", "deep", "digits"],
)
def test_not_json(unmoved, body):
    """A body that is no JSON in UTF-8 is a 4xx of the usual shape; what is simply not JSON is 400."""
    response = unmoved.post("/v1/route", content=body, headers={"content-type": "application/json"})
    if body == b"":
        refused(response, 422, "INVALID_INPUT")
    else:
        refused(response, 400, "INVALID_JSON")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_not_a_number(shared, number):
    """NaN and infinity are refused in a reward, and nothing is kept."""
    key = routed(shared.http)["decision_id"]
    body = b'{"decision_id": "' + key.encode() + b'", "reward": ' + number + b"}"
    response = shared.http.post("/v1/feedback", content=body, headers={"content-type": "application/json"})
    refused(response, 422, "INVALID_INPUT")
    assert shared.router.decision(key).feedback == ()


@pytest.mark.parametrize("body", [b"[]", b'"question"', b"7", b"null"])
def test_not_an_object(unmoved, body):
    """JSON that is no object is 422."""
    response = unmoved.post("/v1/route", content=body, headers={"content-type": "application/json"})
    refused(response, 422, "INVALID_INPUT")


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
@pytest.mark.parametrize("path", ["/v1/route", "/v1/feedback", "/v1/feedback/batch", "/v1/outcomes"])
def test_json_that_is_not_said_to_be(unmoved, path, kind):
    """JSON without its content type, as `curl -d` sends it, is refused by the header's name and what it must be."""
    headers = {} if kind is None else {"content-type": kind}
    response = unmoved.post(path, content=json.dumps({"question": QUESTION}), headers=headers)
    error = refused(response, 422, "INVALID_INPUT", field="content-type")
    assert (kind or "without a content type") in error["message"]
    assert "content-type: application/json" in error["remedy"]


@pytest.mark.parametrize(
    ("path", "body", "field", "wanted"),
    [
        ("/v1/route", '{"budget": {"seconds": "3"}}', "budget.seconds", 'a finite number or null, not "3"'),
        ("/v1/route", '{"budget": {"seconds": 1e400}}', "budget.seconds", "a finite number or null, not Infinity"),
        ("/v1/route", '{"budget": {"dollars": true}}', "budget.dollars", "a finite number or null, not true"),
        ("/v1/route", '{"budget": {"rounds": 1.5}}', "budget.rounds", "a whole number or null, not 1.5"),
        ("/v1/route", '{"budget": [1]}', "budget", "an object, not this list"),
        (
            "/v1/route",
            '{"context": {"a": [1]}}',
            "context.a",
            "text, a finite number, true, false or null, not this list",
        ),
        ("/v1/route", '{"context": {"a": NaN}}', "context.a", "text, a finite number, true, false or null, not NaN"),
        ("/v1/route", '{"context": 7}', "context", "an object, not 7"),
        ("/v1/route", '{"arms": ["single_step", 7]}', "arms.1", "text, not 7"),
        ("/v1/route", '{"arms": "single_step"}', "arms", 'a list, not "single_step"'),
        ("/v1/route", '{"decision_id": 7}', "decision_id", "text or null, not 7"),
        ("/v1/feedback", '{"rating": "good"}', "rating", 'true, false, a finite number or null, not "good"'),
        ("/v1/feedback", '{"label": 7}', "label", "text, a list of texts or null, not 7"),
        ("/v1/feedback", '{"reward": {"is": 1}}', "reward", "a finite number or null, not this object"),
        ("/v1/outcomes", '{"steps": null}', "steps", "a finite number, not null"),
        ("/v1/outcomes", '{"cost": {"llm_calls": "1"}}', "cost.llm_calls", 'a finite number, not "1"'),
        ("/v1/outcomes", '{"status": "done"}', "status", "'answered', 'exhausted' or 'failed', not \"done\""),
    ],
)
def test_a_wrong_type_is_told_all_right_ones(unmoved, path, body, field, wanted):
    """A value of a wrong type is refused once, with every type that would have been right and with what was sent."""
    needed = {"question": QUESTION} if path == "/v1/route" else {"decision_id": "any"}
    sent = json.dumps(needed)[:-1] + ", " + body[1:]
    response = unmoved.post(path, content=sent, headers={"content-type": "application/json"})
    error = refused(response, 422, "INVALID_INPUT", field=field)
    assert error["message"] == f'"{field}" must be {wanted}'
    assert error["remedy"]


def test_a_missing_field_is_a_sentence(unmoved):
    """What is missing, and what is no field, is said in a sentence that names it; wait_s is told its place."""
    missing = refused(unmoved.post("/v1/route", json={}), 422, "INVALID_INPUT", field="question")
    assert missing["message"] == '"question" is required (string)'
    batch = refused(unmoved.post("/v1/feedback/batch", json={}), 422, "INVALID_INPUT", field="items")
    assert batch["message"] == '"items" is required (list)'
    sent = {"question": QUESTION, "wait_s": 3}
    misplaced = refused(unmoved.post("/v1/answer", json=sent), 422, "INVALID_INPUT", field="wait_s")
    assert misplaced["message"] == '"wait_s" is not a field of this request'
    assert "/v1/answer?wait_s=" in misplaced["remedy"]


def test_a_long_or_deep_wrong_value_is_not_repeated(unmoved):
    """What is wrong is shown in a few words, however long or deep it is."""
    deep = json.loads("[" * 400 + "]" * 400)
    for value in ("x" * 10_000, ["x"] * 10_000, deep, {"a": deep}):
        response = unmoved.post("/v1/route", json={"question": QUESTION, "budget": {"seconds": value}})
        assert len(refused(response, 422, "INVALID_INPUT", field="budget.seconds")["message"]) < 150


@pytest.mark.parametrize("announced", [True, False])
def test_too_large(http, announced):
    """A body of 1 MB is 413, also when its length is not announced, and the service goes on."""
    body = json.dumps({"question": "x" * 1_000_000}).encode()
    pieces = (body[start : start + 10_000] for start in range(0, len(body), 10_000))
    response = http.post("/v1/route", content=body if announced else pieces)
    refused(response, 413, "BODY_TOO_LARGE")
    routed(http)


def test_wrong_path_and_method(unmoved):
    """An unknown path is 404 and a wrong method 405, both in the usual shape."""
    refused(unmoved.get("/v1/nowhere"), 404, "NOT_FOUND")
    refused(unmoved.get("/v1/route"), 405, "METHOD_NOT_ALLOWED")


# -------------------------------------------------------------------------------------------------------- operations


def test_health_and_docs(unmoved):
    """/health says that the process lives, /docs and /openapi.json describe every path."""
    assert unmoved.get("/health").json() == {"status": "ok"}
    assert unmoved.get("/docs").status_code == 200
    paths = set(unmoved.get("/openapi.json").json()["paths"])
    assert {"/v1/route", "/v1/answer", "/v1/outcomes", "/v1/feedback", "/v1/feedback/batch"} <= paths
    assert {"/v1/decisions/{decision_id}", "/v1/status", "/health", "/ready", "/metrics"} <= paths


def test_every_reply_is_described(unmoved):
    """/openapi.json has a schema for every reply, the 202 of /v1/answer among them, and a budget with all its caps."""
    described = unmoved.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    for path, calls in described["paths"].items():
        for call in calls.values():
            for status, reply in call["responses"].items():
                assert [body["schema"] for body in reply["content"].values()] != [{}], (path, status)
    answers = described["paths"]["/v1/answer"]["post"]["responses"]
    named = {status: answers[status]["content"]["application/json"]["schema"]["$ref"] for status in ("200", "202")}
    whole, pending = (schemas[named[status].rpartition("/")[2]] for status in ("200", "202"))
    assert {"decision_id", "arm", "propensity", "answer", "steps", "cost", "stop_reason"} <= set(whole["required"])
    assert "cost" not in pending["properties"]
    assert set(schemas["BudgetBody"]["properties"]) == {"rounds", "passages", "tokens", "seconds", "dollars"}


def test_every_endpoint_is_explained(unmoved):
    """Every endpoint has a tag, a summary of several words and a description; so has every parameter and field."""
    described = unmoved.get("/openapi.json").json()
    assert {tag["name"] for tag in described["tags"]} == {"Decisions", "Feedback", "Operations"}
    for path, calls in described["paths"].items():
        for call in calls.values():
            assert call["tags"][0] in {"Decisions", "Feedback", "Operations"}, path
            assert len(call["summary"].split()) >= 3, path
            assert call["description"].endswith("."), path
            assert all(parameter["description"] for parameter in call.get("parameters", ())), path
    (wait,) = [p for p in described["paths"]["/v1/answer"]["post"]["parameters"] if p["name"] == "wait_s"]
    assert "query parameter" in wait["description"]
    for name in ("RouteBody", "FeedbackBody", "FeedbackBatchBody", "OutcomeBody"):
        body = described["components"]["schemas"][name]
        assert set(body["example"]) <= set(body["properties"])
        assert all(field.get("description") for field in body["properties"].values()), name


@pytest.mark.parametrize("body", [RouteBody, FeedbackBody, FeedbackBatchBody, OutcomeBody])
def test_examples_are_valid(body):
    """The example of a body is one that the service takes."""
    body.model_validate(body.model_config["json_schema_extra"]["example"])


def as_described(path: str, response) -> None:
    """The reply has the fields and the types of its schema, no others, and none is missing."""
    model = TypeAdapter(REPLIES[path][response.status_code]["model"])
    assert model.dump_python(model.validate_python(response.json()), mode="json") == response.json()


def test_replies_are_as_described(http, service):
    """What each call really replies is what its schema says, field by field."""
    key = routed(http, decision_id="mine-1", context={"a": 1}, budget={"rounds": 2})["decision_id"]
    as_described("/v1/route", http.post("/v1/route", json={"question": QUESTION}))
    asked = {"question": QUESTION, "decision_id": "mine-2"}
    as_described("/v1/answer", http.post("/v1/answer?wait_s=0", json=asked))
    as_described("/v1/decisions/{decision_id}/cancel", http.post("/v1/decisions/mine-2/cancel"))
    worker_answers(service, "mine-2", "Bram Stoker")
    as_described("/v1/answer", http.post("/v1/answer?wait_s=0", json=asked))
    as_described("/v1/decisions/{decision_id}/cancel", http.post("/v1/decisions/mine-2/cancel"))
    as_described("/v1/decisions/{decision_id}", http.get(f"/v1/decisions/{key}"))
    for _ in range(2):
        as_described("/v1/outcomes", http.post("/v1/outcomes", json={"decision_id": key, "answer": "Bram Stoker"}))
        judged = {"decision_id": key, "feedback_id": "f1", "label": ["Bram Stoker"]}
        as_described("/v1/feedback", http.post("/v1/feedback", json=judged))
    items = [{"decision_id": key, "rating": True}, {"decision_id": "nobody", "rating": True}]
    as_described("/v1/feedback/batch", http.post("/v1/feedback/batch", json={"items": items}))
    assert service.router.learn() > 0
    for decision_id in (key, "mine-2"):
        as_described("/v1/decisions/{decision_id}", http.get(f"/v1/decisions/{decision_id}"))
    for path in ("/health", "/ready", "/v1/status"):
        as_described(path, http.get(path))


def test_overload_is_refused_early(serve):
    """While max_waiting requests wait for their batch, more are 503 with Retry-After; those that wait are served."""
    service = serve(server={"max_waiting": 2})
    key = routed(service.http)["decision_id"]
    opened, encode = threading.Event(), service.router.encoder.encode
    service.router.encoder.encode = lambda texts: opened.wait(20) and encode(texts)
    with ThreadPoolExecutor(3) as callers:
        waiting = [callers.submit(routed, service.http)]
        give_up = time.monotonic() + 10
        while len(waiting) < 3 or service.router.waiting() < 2:  # one in the encoder, two behind it
            assert time.monotonic() < give_up
            if len(waiting) < 3 and service.router.waiting() == len(waiting) - 1:
                time.sleep(0.05)  # until the first has left the queue
                waiting.append(callers.submit(routed, service.http))
            time.sleep(0.01)
        for path, body in (
            ("/v1/route", {"question": QUESTION}),
            ("/v1/outcomes", {"decision_id": key}),
            ("/v1/feedback", {"decision_id": key, "rating": True}),
            ("/v1/feedback/batch", {"items": [{"decision_id": key, "rating": True}]}),
        ):
            response = service.http.post(path, json=body)
            assert "waiting already" in refused(response, 503, "NOT_READY")["message"]
            assert response.headers["retry-after"] == "1"
        assert service.http.get("/ready").status_code == 200
        opened.set()
        assert all(call.result(20)["decision_id"] for call in waiting)
    routed(service.http)


def test_ready(http):
    """/ready names every part and says ok."""
    response = http.get("/ready")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "parts": {"router": "ok", "database": "ok", "redis": "ok"}}


def test_ready_without_redis(serve, tmp_path):
    """Without Redis the service is ready, since it decides and keeps feedback, and says what is missing."""
    service = serve()
    client = connect(f"unix://{tmp_path / 'nobody.sock'}")
    service.router.jobs = RedisJobs(client)
    response = service.http.get("/ready")
    assert response.status_code == 200
    assert "Redis" in response.json()["parts"]["redis"]
    assert service.http.get("/metrics").status_code == 200
    client.close()


def test_database_gone(serve, postgres, postgres_url):
    """With the database gone /ready is 503, so is every request, as a StoreError with Retry-After; /health stays ok."""
    service = serve(database_url=postgres_url)
    key = routed(service.http)["decision_id"]
    postgres.drop(service.router.database.url.database)
    response = service.http.get("/ready")
    assert response.status_code == 503
    assert (response.json()["status"], response.json()["parts"]["router"]) == ("not ready", "ok")
    assert response.json()["parts"]["database"] != "ok"
    for call in (
        lambda: service.http.post("/v1/route", json={"question": QUESTION}),
        lambda: service.http.post("/v1/feedback", json={"decision_id": key, "rating": True}),
        lambda: service.http.post("/v1/outcomes", json={"decision_id": key}),
        lambda: service.http.get(f"/v1/decisions/{key}"),
        lambda: service.http.get("/v1/status"),
    ):
        response = call()
        refused(response, 503, "STORE_UNAVAILABLE")
        assert response.headers["retry-after"] == "1"
    assert service.http.get("/health").status_code == 200


def test_status(http, service):
    """/v1/status has counters that balance, the lag and the serving version."""
    for number in range(3):
        key = routed(http, question=f"question {number}")["decision_id"]
        http.post("/v1/feedback", json={"decision_id": key, "reward": 0.5})
    service.router.learn()
    routed(http)
    status = http.get("/v1/status").json()
    counters = status["counters"]
    assert (counters["decided"], counters["learned"], counters["waiting"]) == (4, 3, 1)
    assert status["balanced"] is True
    assert status["serving"] == status["snapshot"] == service.router.service.serving.version
    assert (status["last_seq"], status["behind"]) == (3, 0)
    assert (status["algorithm"], status["policy"], status["faults"]) == ("mba", "main", 0)
    assert status["feedback_to_policy_ms"]["n"] == 3


def measured(http) -> dict[tuple[str, ...], float]:
    text = http.get("/metrics").text
    return {
        (sample.name, *(v for _, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics(http, service):
    """/metrics parses as Prometheus text, and its counters move with what happens."""
    before = measured(http)
    key = routed(http, arms=["single_step"])["decision_id"]
    http.post("/v1/feedback", json={"decision_id": key, "feedback_id": "f1", "reward": 0.5})
    http.post("/v1/feedback", json={"decision_id": key, "feedback_id": "f1", "reward": 0.5})
    http.get("/v1/nowhere")
    service.router.learn()
    after = measured(http)

    def moved(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    assert sum(v for k, v in after.items() if k[0] == "ragbandit_decisions_total") == 1
    assert moved("ragbandit_feedback_total", "reward", "kept") == 1
    assert moved("ragbandit_feedback_total", "reward", "duplicate") == 1
    assert moved("ragbandit_route_seconds_count") == 1
    assert moved("ragbandit_ledger", "learned") == 1
    assert moved("ragbandit_policy_last_seq") == 1
    assert moved("ragbandit_requests_total", "/v1/route", "200") == 1
    assert moved("ragbandit_requests_total", "/v1/feedback", "202") == 1
    assert sum(v for k, v in after.items() if k[0] == "ragbandit_requests_total" and k[-1] == "404") == 1


def test_metrics_of_faults(http, service):
    """A decision of the fallback is counted as a fault and shows why."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    service.router.service.serving.policy.pmf = broken
    assert routed(http)["fault"] == "RuntimeError: broken"
    assert http.get("/v1/status").json()["faults"] == 1
    assert measured(http)["ragbandit_policy_faults_total",] == 1


# ----------------------------------------------------------------------------------------------------------- client


@pytest.fixture
def client(service):
    with Client(service.url) as opened:
        yield opened


def test_client(client, service):
    """The client walks the whole loop."""
    assert client.ready()
    decision = client.route(QUESTION, decision_id="mine-1", context={"a": 1}, arms=["single_step"], tenant="acme")
    assert (decision["decision_id"], decision["arm"]) == ("mine-1", "single_step")
    assert client.outcome("mine-1", answer="Bram Stoker", steps=1)["duplicate"] is False
    assert client.feedback("mine-1", feedback_id="f1", label=["Bram Stoker"])["late"] is False
    assert [r["late"] for r in client.feedback_batch([{"decision_id": "mine-1", "rating": True}])] == [False]
    service.router.learn()
    assert client.decision("mine-1")["state"] == "learned"
    assert client.status()["counters"]["learned"] == 1
    assert client.answer("Who wrote Emma?", wait_s=0)["status"] == "pending"


def test_client_errors(client):
    """The client raises the class that the service raised, with field and remedy."""
    client.route(QUESTION, decision_id="mine-1")
    with pytest.raises(errors.InvalidInput) as caught:
        client.route("")
    assert caught.value.field == "question"
    assert caught.value.remedy
    with pytest.raises(errors.Conflict):
        client.route("Who wrote Emma?", decision_id="mine-1")
    with pytest.raises(errors.NotFound):
        client.decision("nobody")
    with pytest.raises(errors.RagBanditError, match="larger"):
        client.route("x" * 1_000_000)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_client_not_a_number(client, value):
    """A number that JSON cannot carry is refused by the client as InvalidInput, not by a bug of its own."""
    key = client.route(QUESTION)["decision_id"]
    with pytest.raises(errors.InvalidInput):
        client.feedback(key, reward=value)


def test_client_lone_surrogate(client):
    """Text that UTF-8 cannot carry is InvalidInput."""
    with pytest.raises(errors.InvalidInput):
        client.route("\ud800")


def test_client_of_nothing():
    """A client whose service does not answer raises NotReady and says that it is not ready."""
    with Client("http://127.0.0.1:9", timeout_s=2) as nobody:
        assert nobody.ready() is False
        with pytest.raises(errors.NotReady) as caught:
            nobody.route(QUESTION)
    assert caught.value.remedy


def test_client_store_error(serve, postgres, postgres_url):
    """A database that is gone comes back to the client as StoreError."""
    service = serve(database_url=postgres_url)
    postgres.drop(service.router.database.url.database)
    with Client(service.url) as client:
        with pytest.raises(errors.StoreError):
            client.route(QUESTION)
        assert client.ready() is False


def test_docs_need_no_internet(unmoved):
    """The page at /docs loads its script and style from this service, and nothing from elsewhere."""
    assets = re.findall(r'(?:src|href)="([^"]+)"', unmoved.get("/docs").text)

    assert len(assets) == 3
    assert all(asset.startswith("/docs/assets/") for asset in assets)
    assert [unmoved.get(asset).status_code for asset in assets] == [200, 200, 200]
    assert unmoved.get("/openapi.json").json()["openapi"].startswith("3.0.")


# ------------------------------------------------------------------------------------------- cancelling


def test_cancel(service, http):
    """A pending answer is cancelled with 202, as often as it is asked for; once it has ended, all edges say how."""
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
    app = typer.Typer()
    add_verbs(app, check=lambda _settings: None)
    assert json.loads(CliRunner().invoke(app, ["cancel", key, "--url", service.url, "--json"]).stdout) == ended
    assert http.post(f"/v1/decisions/{key}/cancel").status_code == 200
    waited = http.post("/v1/answer", json={"question": QUESTION, "decision_id": key})
    assert (waited.status_code, waited.json()["stop_reason"]) == (200, "cancelled")


def test_cancel_is_refused(http):
    """What your own stack runs is a conflict with a remedy, an unknown id is 404, and no id is 422."""
    conflict = http.post(f"/v1/decisions/{routed(http)['decision_id']}/cancel")
    assert "report the outcome" in refused(conflict, 409, "CONFLICT", field="decision_id")["remedy"]
    unknown = refused(http.post("/v1/decisions/nobody/cancel"), 404, "NOT_FOUND", field="decision_id")
    assert unknown["remedy"] == "use the decision id that answer gave"
    refused(http.post("/v1/decisions/a%20b/cancel"), 422, "INVALID_INPUT", field="decision_id")


def test_both_replies_to_a_cancellation_are_described(http):
    """The description of the surface has the reply that it is pending, and the one that it has ended."""
    described = http.get("/openapi.json").json()["paths"]["/v1/decisions/{decision_id}/cancel"]["post"]
    assert {"200", "202"} <= set(described["responses"])


@pytest.mark.parametrize("key", ["{}?x=1", "{}#x"])
def test_an_id_is_sent_as_it_is(service, http, key):
    """The client asks for the very id it is given, also where a part of it alone would be that of a decision."""
    sent = key.format(routed(http)["decision_id"])
    with Client(service.url) as client:
        for ask in (client.decision, client.cancel):
            with pytest.raises(errors.InvalidInput) as caught:
                ask(sent)
            assert caught.value.field == "decision_id"
