"""The HTTP client against a real service: the same values, and the errors that the service raised."""

import asyncio

import pytest

from ragbandit import AsyncClient, Client
from ragbandit.shared import errors
from tests.support.servers.http_service import QUESTION


@pytest.fixture
def client(service):
    with Client(service.url) as opened:
        yield opened


#: arms that a request allows; what a list of one decides is not learned
TWO = ["single_step", "multi_step"]


def test_client(client, service):
    """The client walks the whole loop."""
    assert client.ready()
    decision = client.route(QUESTION, decision_id="mine-1", context={"a": 1}, arms=TWO, tenant="acme")
    assert decision["decision_id"] == "mine-1"
    assert decision["arm"] in TWO
    assert client.outcome("mine-1", answer="Bram Stoker", steps=1)["duplicate"] is False
    assert client.feedback("mine-1", feedback_id="f1", label=["Bram Stoker"])["late"] is False
    assert [r["late"] for r in client.feedback_batch([{"decision_id": "mine-1", "rating": True}])] == [False]
    decided, refusal = client.route_batch([{"question": QUESTION, "decision_id": "mine-2"}, {"question": ""}])
    assert (decided["decision_id"], refusal["error"]["field"]) == ("mine-2", "question")
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


def test_client_says_when_to_try_again(serve):
    """A refusal under overload comes back as its class, with the seconds after which it is worth another try."""
    service = serve(server={"tenant_unanswered": 1, "answer_wait_s": 0})
    with Client(service.url) as client:
        client.answer(QUESTION, tenant="acme")
        with pytest.raises(errors.TooManyRequests) as caught:
            client.answer(QUESTION, tenant="acme")
    assert (caught.value.field, caught.value.retry_after_s) == ("tenant", 5.0)


def test_a_task(client, service):
    """The turns of a task get one arm, and are learned once, when the block has ended, also if the block fails."""
    with client.task(tenant="acme") as task:
        turns = [task.route(QUESTION), task.route("And when?")]
        for turn in turns:
            client.outcome(turn["decision_id"], answer="Bram Stoker", steps=1)
        assert task.feedback(rating=True, source="code")["waiting_for"] is None
        assert service.router.learn() == 0
    assert turns[0]["arm"] == turns[1]["arm"]
    assert service.router.learn() == 1
    assert service.router.decision(turns[1]["decision_id"]).decision.turn_of == turns[0]["decision_id"]

    def fail():
        with client.task("chat-1") as task:
            assert task.answer(QUESTION, wait_s=0)["status"] == "pending"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert client.end_session("chat-1")["ended"] == 0
    with pytest.raises(errors.InvalidInput, match="no turn"), client.task() as task:
        task.feedback(rating=True)


def test_a_task_of_asyncio(service):
    """AsyncClient has the same block."""

    async def run():
        async with AsyncClient(service.url) as client:
            async with client.task() as task:
                first, second = await task.route(QUESTION), await task.route("And when?")
                await task.feedback(rating=False)
            return first, second, await client.end_session(task.session_id)

    first, second, end = asyncio.run(run())
    assert first["arm"] == second["arm"]
    assert (end["decision_id"], end["ended"]) == (first["decision_id"], 0)


def test_a_task_without_the_service():
    """A task of degraded turns has nothing to end."""
    lonely = Client("http://127.0.0.1:9", default_arm="fast", connect_timeout_s=1, retries=0)
    with lonely, lonely.task() as task:
        assert task.route(QUESTION)["degraded"] is True
        assert task.feedback(rating=True)["degraded"] is True
