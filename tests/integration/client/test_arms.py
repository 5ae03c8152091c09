"""Functions of the caller as arms, against a real service: chosen, run, reported, judged."""

import asyncio
import logging

import pytest

from ragbandit import AsyncClient, Client
from ragbandit.shared import errors
from tests.support.servers.http_service import QUESTION
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply

OURS = {"fast": {"run_by": "caller"}, "deep": {"run_by": "caller"}, "other": {"run_by": "caller"}}


@pytest.fixture
def service(serve):
    return serve(arms=OURS, reward={"cost": {"seconds_total": 1.0}})


@pytest.fixture
def client(service):
    with Client(service.url) as opened:
        yield opened


def test_one_call(client):
    """The arms are drawn among the functions alone; answer and seconds are stored, and no steps that nobody counted."""
    arms = client.arms({"fast": lambda question: f"fast: {question}", "deep": lambda question: f"deep: {question}"})
    run = arms(QUESTION, context={"premium": True}, tenant="acme", decision_id="mine")
    record = client.decision("mine")
    assert run.value == f"{run.arm}: {QUESTION}"
    assert (run.decision_id, run.reported, run.degraded) == ("mine", True, False)
    assert set(record["pmf"]) == {"fast", "deep"}
    assert (record["context"], record["tenant"]) == ({"premium": True}, "acme")
    outcome = record["outcome"]
    assert (outcome["status"], outcome["answer"], outcome["steps"]) == ("answered", run.value, 0)
    assert outcome["cost"]["seconds_total"] == pytest.approx(run.seconds)


def test_what_a_value_says_of_its_outcome(client):
    """`outcome_of` makes answer, steps and cost of whatever a function returns."""
    found = {"text": "Bram Stoker", "rounds": 3, "price": 0.02}

    def outcome_of(value):
        return {"answer": value["text"], "steps": value["rounds"], "cost": {"dollars": value["price"]}}

    run = client.arms({"fast": lambda _: found}, outcome_of=outcome_of)(QUESTION)
    outcome = client.decision(run.decision_id)["outcome"]
    assert run.value is found
    assert (outcome["answer"], outcome["steps"], outcome["cost"]["dollars"]) == ("Bram Stoker", 3, 0.02)
    assert outcome["cost"]["seconds_total"] > 0


def test_costs_that_nobody_says_are_refused(serve, caplog):
    """Where the reward charges steps an answer without them is not stored, and the log says how; a failure is."""
    with Client(serve(arms=OURS).url) as client:
        run = client.arms({"fast": lambda _: "here"})(QUESTION)
        assert (run.value, run.reported) == ("here", False)
        (said,) = [record.getMessage() for record in caplog.records if record.name == "ragbandit.client"]
        assert "the reward charges steps" in said
        assert "outcome_of" in said
        assert client.decision(run.decision_id)["outcome"] is None
        with pytest.raises(LookupError):
            client.arms({"fast": lambda _: {}["nothing"]})(QUESTION, decision_id="failed")
        assert client.decision("failed")["outcome"]["status"] == "failed"
        assert client.report(client.route(QUESTION)["decision_id"], seconds=0.1, steps=2)


def test_an_arm_that_raises(client):
    """Its error is a failed outcome without secrets, and is raised as it is."""

    def broken(_):
        raise LookupError("no index at http://me:hunter22@host/")

    with pytest.raises(LookupError) as caught:
        client.arms({"deep": broken})(QUESTION, decision_id="mine")
    assert caught.value.args == ("no index at http://me:hunter22@host/",)
    outcome = client.decision("mine")["outcome"]
    assert (outcome["status"], outcome["answer"]) == ("failed", None)
    assert outcome["error"].startswith("LookupError: no index")
    assert "hunter22" not in outcome["error"]


def test_unknown_arms(client):
    """A function under a name that the service does not have is refused before anything runs, with the remedy."""
    with pytest.raises(errors.InvalidInput) as caught:
        client.arms({"fast": str, "slow": str})(QUESTION)
    assert caught.value.field == "arms"
    assert "slow" in str(caught.value)
    assert "slow: {run_by: caller}" in caught.value.remedy


def test_async_functions_need_the_async_client(client):
    """Client reports an async function, also one that looks synchronous."""

    async def deep(question):
        return question

    with pytest.raises(errors.InvalidInput, match="async"):
        client.arms({"deep": deep})
    with pytest.raises(errors.InvalidInput, match="async"):
        client.arms({"deep": lambda question: deep(question)})(QUESTION, decision_id="mine")
    assert client.decision("mine")["outcome"]["status"] == "failed"


def test_without_the_service(caplog):
    """The default arm's function is run, and nothing is reported; without a default nothing runs."""
    with Client("http://127.0.0.1:9", default_arm="fast") as client:
        run = client.arms({"fast": lambda question: "quick", "deep": str})(QUESTION)
        assert (run.value, run.arm, run.degraded, run.reported) == ("quick", "fast", True, False)
        with pytest.raises(errors.NotReady):
            client.arms({"deep": str})(QUESTION)


def test_an_outcome_that_cannot_be_sent(caplog):
    """The value is not lost with it: it comes back, with `reported` False and an error in the log."""
    decided = json_reply({"decision_id": "d", "arm": "fast"})
    with ScriptedHttp(decided, Scripted(status=500, body=b"<html>")) as server, Client(server.url) as client:
        run = client.arms({"fast": lambda _: "here"})(QUESTION)
    assert (run.value, run.reported) == ("here", False)
    assert [record.levelno for record in caplog.records if record.name == "ragbandit.client"] == [logging.ERROR]


def test_async_arms(service):
    """Async functions are awaited, others run in threads; failures as with Client."""

    async def deep(question):
        await asyncio.sleep(0)
        return f"deep: {question}"

    async def walk():
        async with AsyncClient(service.url) as client:
            arms = client.arms({"fast": lambda question: f"fast: {question}", "deep": deep})

            runs = await asyncio.gather(*(arms(QUESTION) for _ in range(20)))
            await asyncio.gather(*(client.feedback(run.decision_id, rating=True) for run in runs))
            records = [await client.decision(run.decision_id) for run in runs]
            with pytest.raises(ZeroDivisionError):
                await client.arms({"fast": lambda _: 1 / 0})(QUESTION, decision_id="mine")
            return runs, records, await client.decision("mine")

    runs, records, failed = asyncio.run(walk())
    assert [record["outcome"]["answer"] for record in records] == [f"{run.arm}: {QUESTION}" for run in runs]
    assert {record["feedback"][0]["value"] for record in records} == {1.0}
    assert {run.arm for run in runs} == {"fast", "deep"}
    assert failed["outcome"]["error"] == "ZeroDivisionError: division by zero"
