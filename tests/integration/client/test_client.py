"""The HTTP client against a real service: the same values, and the errors that the service raised."""

import pytest

from ragbandit import Client
from ragbandit.shared import errors
from tests.support.servers.http_service import QUESTION


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
