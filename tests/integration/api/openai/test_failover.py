"""Failover: a model that fails before its first content is replaced by another arm, at every door."""

import itertools
import time
from functools import partial

import pytest

from benchmarks.service_process import free_port
from ragbandit.router.operation.findings import findings_of_store
from tests.support.additions import needs
from tests.support.servers.faulty_models import DOORS, FaultyModels, asked, events_of, generator, two_models

#: faults after which the other arm answers
HANDED_OVER = (
    *("reset", "reset-in-headers", "reset-after-headers", "reset-after-role", "silence", "silence-after-role"),
    *("500", "502", "503", "504", "408", "429", "429-after", "401", "403", "404", "invalid-json", "empty-body"),
    *("empty-stream", "role-only", "html", "error-event", "role-then-error", "model-gone"),
)
#: refusals by which an arm is unable to answer, and another may
UNABLE = ("too-long", "no-tools", "413")
#: faults of the request: status and message
REFUSED = {"400": "bad schema", "422": "bad field", "wrong": "got 9"}
#: faults of every arm -> status and message of the reply
ALL_FAIL = {
    "500": (502, "the model crashed"),
    "502": (502, "502 Bad Gateway"),
    "503": (503, "no healthy upstream"),
    "too-long": (400, "prompt is too long: 9000 tokens > 4 maximum"),
    "429": (429, "slow down"),
    "429-after": (429, "slow down"),
    "silence": (504, "silent"),
    "404": (502, "no such model"),
    "reset": (502, "hung up"),
    "html": (502, "log in"),
}


@pytest.fixture(scope="module")
def serve_models(serve_module):
    """A factory of services that answer by themselves, with these settings."""
    return partial(serve_module, inline=True)


@pytest.fixture(scope="module")
def gateway(serve_models):
    """A service with two models behind one faulty server."""
    with FaultyModels() as server:
        service = serve_models(**two_models(server.url))
        yield service.http, server, service


def test_another_arm_answers(gateway):
    """After each fault before the first content the caller gets the other arm's answer, and only that decision's id."""
    client, server, _ = gateway
    doors = itertools.cycle(DOORS)
    for fault in (*HANDED_OVER, *UNABLE):
        door, stream = next(doors)
        question = f"fault:{fault} {door} {stream}"
        status, text, key, error, reply = asked(client, question, door=door, stream=stream)
        assert (fault, status, text) == (fault, 200, "Paris"), (fault, error)
        key = key.removeprefix("chatcmpl-")
        assert reply.headers["x-ragbandit-decision-id"] == key
        if stream:
            ids = {one["id"] if door == "chat" else one.get("response", {}).get("id", key) for one in events_of(reply)}
            assert {one.removeprefix("chatcmpl-") for one in ids} == {key}
        kept = client.get(f"/v1/decisions/{key}").json()
        link = kept["request"]["failover"]
        drawn = client.get(f"/v1/decisions/{link['first']}").json()
        assert (kept["forced"], kept["propensity"], drawn["forced"]) == (True, 1.0, False)
        assert drawn["outcome"]["status"] == "failed"
        assert drawn["outcome"]["made_by"]["successor"] == key
        assert server.requests_of(question) == [drawn["arm"], kept["arm"]]


def test_faults_of_the_request_and_of_all_arms(gateway):
    """A wrong request is refused by one arm only, with its status; if all arms fail, the last failure counts."""
    client, server, _ = gateway
    expected = {f"fault:{name}": (422 if name == "422" else 400, said, 1) for name, said in REFUSED.items()}
    expected |= {f"always:{name}": (status, said, 2) for name, (status, said) in ALL_FAIL.items()}
    for (fault, (status, message, count)), (door, stream) in zip(
        expected.items(), itertools.cycle(DOORS), strict=False
    ):
        question = f"{fault} {door} {stream}"
        got, text, _, error, reply = asked(client, question, door=door, stream=stream)
        assert (fault, got, text) == (fault, 200 if door == "answer" else status, None)
        assert message in error, fault
        assert len(set(server.requests_of(question))) == count, fault
        if got == 503:
            assert (reply.headers["retry-after"], "x-should-retry" in reply.headers) == ("1", False)
        if got == 429:
            assert reply.headers["retry-after"] == ("7" if "after" in fault else "1")
            assert "x-should-retry" not in reply.headers


@needs("responses")
def test_after_content_there_is_no_second_arm(gateway):
    """A stream that breaks off after a piece ends with an error with this reason; another arm gives a whole reply."""
    client, server, _ = gateway
    for door in ("chat", "responses"):
        status, _, _, error, reply = asked(client, f"fault:cut {door}", door=door, stream=True)
        assert (status, "Par" in reply.text) == (200, True)
        assert "no other arm was asked" in error
        assert len(server.requests_of(f"fault:cut {door}")) == 1
        assert asked(client, f"fault:cut whole {door}", door=door)[:2] == (200, "Paris")


def test_who_wants_no_other_arm(gateway):
    """Neither a request with `failover: false` nor a chosen arm is answered by another arm."""
    client, server, _ = gateway
    for number, more in enumerate(({"failover": False}, {"model": "arm/two"}, {"door": "answer", "failover": False})):
        question = f"always:500 none {number}"
        assert asked(client, question, **more)[1] is None
        assert len(set(server.requests_of(question))) == 1


@needs("responses")
def test_a_question_that_comes_again(gateway):
    """The id that the caller chose leads to the answer of the other arm: asked again, read, and gone on from."""
    client, server, _ = gateway
    key, body = "resp_again", {"model": "auto", "input": "fault:500 again"}
    replies = [client.post("/v1/responses", json=body, headers={"Idempotency-Key": key}).json() for _ in range(2)]
    assert replies[0]["status"] == "completed"
    assert replies[0]["id"] != key
    assert client.get(f"/v1/responses/{key}").json()["output"] == replies[1]["output"] == replies[0]["output"]
    on = client.post("/v1/responses", json={"model": "auto", "input": "And?", "previous_response_id": key})
    assert on.json()["status"] == "completed"
    assert len(server.requests_of("fault:500 again")) == 2


def test_what_is_booked_and_learned(gateway):
    """Feedback judges the linked decision only, nothing of it is learned, and the explanation has the reason."""
    client, _, service = gateway
    _, _, key, _, reply = asked(client, "fault:503 booked")
    key, facts = key.removeprefix("chatcmpl-"), reply.json()["ragbandit"]
    first = facts["failover"]["first"]
    assert facts["failover"]["reason"] == "failed"
    assert client.post("/v1/feedback", json={"decision_id": key, "rating": 1.0}).status_code == 202
    assert client.get(f"/v1/decisions/{first}").json()["feedback"] == []
    reasons = client.get(f"/v1/decisions/{key}/explanation").json()["reasons"]
    assert f"answers in place of {facts['failover']['arm']}, which failed (failed)" in " ".join(reasons)
    service.router.learn()
    stored = client.get(f"/v1/decisions/{key}").json()
    assert stored["state"] == "closed"
    assert "in place of an arm that failed" in stored["reason"]
    assert 'ragbandit_failovers_total{arm="' in client.get("/metrics").text
    assert service.router.verify(deep=True).ok


@pytest.mark.parametrize("fault", UNABLE)
def test_an_arm_that_was_unable_is_not_punished(gateway, fault):
    """Nothing is learned from the decision of an arm that was unable to answer, whatever its rating and its label are;
    an arm that the request names keeps the error.
    """
    client, server, service = gateway
    _, _, _, _, reply = asked(client, f"fault:{fault} unable")
    facts = reply.json()["ragbandit"]["failover"]
    assert facts["reason"] == "unable"
    for judged in ({"rating": 0.0}, {"label": ["Paris"]}):
        assert client.post("/v1/feedback", json={"decision_id": facts["first"], **judged}).status_code == 202
    service.router.learn()
    stored = client.get(f"/v1/decisions/{facts['first']}").json()
    assert (stored["state"], "unable" in stored["reason"]) == ("closed", True)
    assert asked(client, f"fault:{fault} named", model="arm/two")[1] is None
    assert server.requests_of(f"fault:{fault} named") == ["two"]
    found = findings_of_store(service.router.database, settings=service.router.settings, now=time.time())
    assert [one for one in found if one.about == f"arms.{facts['arm']}" and "more than its model can do" in one.what]


def test_only_one_other_arm_is_asked_after_an_arm_that_was_unable(serve_models):
    """With three arms and two attempts, two arms that are unable end the question, with the code that clients know."""
    with FaultyModels() as server:
        settings = two_models(server.url)
        settings["generators"]["three"] = generator(server.url, "three")
        settings["arms"]["three"] = {"class": "model", "generator": "three"}
        settings["arms"]["same"] = {"class": "model", "generator": "three", "max_tokens": 9}
        service = serve_models(**settings, server={"failover": 3})
        status, _, _, _, reply = asked(service.http, "always:too-long three")
        assert (status, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert len(set(server.requests_of("always:too-long three"))) == 2
        assert asked(service.http, "always:500 three")[0] == 502
        assert len(set(server.requests_of("always:500 three"))) == 3


def test_a_dead_server_costs_one_question_its_first_attempt(serve_models):
    """A refused connection suspends its arm at once; every question gets its answer from the other arm, soon."""
    url = f"http://127.0.0.1:{free_port()}"
    with FaultyModels() as server:
        service = serve_models(
            generator=generator(server.url, "one"),
            generators={"dead": generator(f"{url}/v1", "dead")},
            arms={
                "one": {"class": "model"},
                "dead": {"class": "model", "generator": "dead"},
                "pipeline": {"class": "http", "url": url, "retries": 5},
            },
            server={"failover": 2},
        )
        began = time.monotonic()
        replies = [asked(service.http, f"question {number}", stream=bool(number % 2)) for number in range(40)]
        assert {reply[:2] for reply in replies} == {(200, "Paris")}
        failed = [reply for *_, reply in replies if "x-ragbandit-failover" in reply.headers]
        assert 1 <= len(failed) <= 6  # the service may decide once more before the first failure is stored
        assert time.monotonic() - began < 60.0
        states = {arm: health["state"] for arm, health in service.http.get("/v1/status").json()["arms"].items()}
        assert states == {"one": "closed", "dead": "open", "pipeline": "open"}


@needs("responses")
def test_a_streamed_response_fails_in_an_event_if_the_prompt_is_too_long(gateway):
    """Codex compacts after `response.failed` with this code, after a refusal of a server and of this service."""
    client, _, _ = gateway
    for text in ("always:too-long codex", "word " * 4000):
        reply = client.post("/v1/responses", json={"model": "auto", "stream": True, "input": text})
        last = events_of(reply)[-1]
        assert (reply.status_code, last["type"], last["response"]["status"]) == (200, "response.failed", "failed")
        assert last["response"]["error"]["code"] == "context_length_exceeded"
        assert last["response"]["error"]["message"].startswith("prompt is too long: ")
        whole = client.post("/v1/responses", json={"model": "auto", "input": text})
        assert (whole.status_code, whole.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_loop_that_grows_too_long_for_its_arm_goes_on_with_another(gateway):
    """Another arm answers the turn, and its answer is that of the drawn decision; a loop of a named arm fails."""
    client, server, _ = gateway
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]

    def turn(*messages, model="auto"):
        body = {"model": model, "tools": tools, "messages": list(messages)}
        reply = client.post("/v1/chat/completions", json=body)
        return reply.status_code, reply.json()

    for model, status in (("auto", 200), ("arm/one", 400)):
        asked_first = {"role": "user", "content": f"look {model}"}
        _, first = turn(asked_first, model=model)
        call = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": f"always:too-long {model}"}
        if model == "auto":
            result["content"] = "fault:too-long auto"
        code, second = turn(asked_first, call, result, model=model)
        assert code == status, second
        drawn = client.get(f"/v1/decisions/{first['id'].removeprefix('chatcmpl-')}").json()
        if model == "auto":
            assert second["ragbandit"]["failover"]["reason"] == "unable"
            assert {first["model"], second["model"]} == {"ragbandit/one", "ragbandit/two"}
            assert (drawn["outcome"]["status"], drawn["outcome"]["stop_reason"]) == ("answered", "answered")
        else:
            assert second["error"]["code"] == "context_length_exceeded"
            assert server.requests_of(result["content"]) == ["one"]


def test_a_task_keeps_the_arm_that_answered(serve_models):
    """After a failure, the next turns of the task go to the arm that answered, and not to the one that failed."""
    with FaultyModels() as server:
        service = serve_models(**two_models(server.url), conversation={"unit": "task"})
        client = service.http
        client.headers["x-ragbandit-session-id"] = "s"
        for place in (1, 2):
            questions = [f"fault:503 {place}", f"fault:none {place} a", f"fault:none {place} b"]
            for question in questions:
                status, text, _, error, _ = asked(client, question)
                assert (status, text) == (200, "Paris"), error
            failed, answered = server.requests_of(questions[0])
            assert failed != answered
            assert [server.requests_of(question) for question in questions[1:]] == [[answered], [answered]]
        assert service.router.status().counters.decided == 1
        assert service.router.verify(deep=True).ok
