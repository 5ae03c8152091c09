"""Replies of a real service have the types that the clients say."""

import asyncio
from dataclasses import fields
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter

from ragbandit import AsyncClient, Cost, Counters, Receipt
from ragbandit.client.replies import decisions, status
from ragbandit.router.serving.health.readiness import LagPercentiles
from tests.support.servers.http_service import QUESTION, worker_answers


@pytest.mark.parametrize(
    ("value", "reply"),
    [
        (Cost, decisions.CostReply),
        (Counters, status.CountersReply),
        (Receipt, decisions.ReceiptReply),
        (LagPercentiles, status.LagReply),
    ],
)
def test_types_of_values(value, reply):
    """A reply's type has every field of the value that it shows, and no other."""
    assert [field.name for field in fields(value)] == list(get_type_hints(reply))


def fits(kind, value):
    TypeAdapter(kind).validate_python(value, strict=True)
    return value


def test_replies_have_their_types(make_client, service):
    """Every reply of a whole loop is of the type that the method names, with no other field."""
    with make_client(service.url) as client:
        routed = fits(decisions.ClientRouteReply, client.route(QUESTION, arms=["single_step"]))
        key = routed["decision_id"]
        assert decisions.RouteReply.__required_keys__ <= set(routed) <= set(get_type_hints(decisions.RouteReply))
        fits(decisions.ClientOutcomeReply, client.outcome(key, answer="Bram Stoker", steps=1))
        fits(decisions.ClientFeedbackReply, client.feedback(key, label=["Bram Stoker"]))
        fits(list[decisions.ReceiptReply], client.feedback_batch([{"decision_id": key, "rating": True}]))
        fits(list[decisions.RouteReply], client.route_batch([{"question": QUESTION}]))
        pending = fits(decisions.PendingReply, client.answer(QUESTION, decision_id="w", wait_s=0))
        worker_answers(service, "w", "Bram Stoker")
        answered = fits(decisions.AnswerReply, client.answer(QUESTION, decision_id="w"))
        assert (pending["decision_id"], answered["answer"]) == ("w", "Bram Stoker")
        fits(decisions.CancellationReply, client.cancel("w"))
        state = fits(status.StatusReply, client.status())
        assert state["counters"]["decided"] == 3
        record = client.decision(key)
        assert decisions.RecordReply.__required_keys__ <= set(record) <= set(get_type_hints(decisions.RecordReply))


def test_many_tasks_in_several_loops(service):
    """One AsyncClient serves many tasks at once, in one event loop after another."""
    client = AsyncClient(service.url, connections=4)

    async def ask(round_):
        wanted = [f"{round_}-{number}" for number in range(32)]
        replies = await asyncio.gather(*(client.route(QUESTION, decision_id=key) for key in wanted))
        await client._transport.pools[asyncio.get_running_loop()].aclose()
        return [reply["decision_id"] for reply in replies] == wanted

    assert asyncio.run(ask("a"))
    assert asyncio.run(ask("b"))


def test_a_cancelled_call(service):
    """A call that is cancelled ends at once, and the client goes on."""

    async def walk():
        async with AsyncClient(service.url) as client:
            waiting = asyncio.create_task(client.answer(QUESTION, wait_s=5))
            await asyncio.sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, 10)
            return await client.route(QUESTION)

    assert asyncio.run(walk())["decision_id"]
