"""Asking for a decision not to be answered, on SQLite and PostgreSQL, and what the Router makes of it."""

import threading

import pytest
from sqlalchemy import select

from ragbandit.router.queue.jobs import RedisJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.cancellations import cancel
from ragbandit.router.storage.jobs.answers import waiting_ids
from ragbandit.router.storage.sql.tables import cancellations as kept
from ragbandit.shared.errors import Conflict, NotFound
from ragbandit.shared.types import Cost, Outcome, Query
from tests.conftest import on_sqlite


def ended(decision, *, status="answered", stop_reason="answer_found"):
    return Outcome(
        decision_id=decision.id,
        status=status,
        answer=None,
        trace=(),
        cost=Cost(),
        steps=0.0,
        stop_reason=stop_reason,
        error=None,
        run_by="worker",
        made_by={},
        made_at=1.0,
    )


def rows(database):
    with database.read() as connection:
        return connection.execute(select(kept.c.decision_id, kept.c.asked_at)).all()


@pytest.mark.parametrize(
    ("status", "stop_reason", "cancelled"),
    [("answered", "answer_found", False), ("failed", "error", False), ("failed", "cancelled", True)],
)
@on_sqlite
def test_what_has_ended_is_not_cancelled(store, database, make_decision, status, stop_reason, cancelled):
    """With an outcome there is nothing to cancel: the reply says how it ended, and nothing is written."""
    decision = make_decision("d1", run_by="worker")
    store.add_decisions([decision])
    store.add_outcome(ended(decision, status=status, stop_reason=stop_reason))
    cancellation = cancel(database, decision_id=decision.id, now=5.0)
    assert (cancellation.cancelled, cancellation.status) == (cancelled, status)
    assert rows(database) == []


@on_sqlite
def test_what_cannot_be_cancelled(store, database, make_decision):
    """A decision that the caller runs is a conflict with a remedy, an unknown one is not found."""
    store.add_decisions([make_decision("d1")])
    with pytest.raises(Conflict, match="your own stack") as caught:
        cancel(database, decision_id="d1", now=5.0)
    assert "report the outcome yourself" in caught.value.remedy
    with pytest.raises(NotFound) as unknown:
        cancel(database, decision_id="d2", now=5.0)
    assert unknown.value.remedy == "use the decision id that route or answer returned"
    assert rows(database) == []


def test_what_closed_unanswered_is_cancelled_at_once(make_world):
    """A decision that the ledger closed unanswered is waited for by no worker: cancelling it ends it, at no cost."""
    world = make_world(learning={"expire_s": 10.0})
    decision = world.route(ours=True)
    world.now += 100
    world.learn()
    assert world.counters().waiting == 0
    world.jobs.broken = True
    for _ in range(2):
        found = world.router.cancel(decision.id)
        assert (found.cancelled, found.status) == (True, "failed")
    outcome = world.store.outcomes_by_id([decision.id])[decision.id]
    assert (outcome.run_by, outcome.stop_reason, outcome.cost) == ("worker", "cancelled", Cost())
    assert world.counters().balanced


def test_the_door_over_redis(redis_server, redis_client, settings):
    """A cancelled decision is claimed next, once, and every worker is notified."""
    heard, told = [], threading.Event()

    def hear(news):
        heard.append(news)
        if news.startswith("cancel:"):
            told.set()

    with Router.open(settings(redis_url=redis_server)) as router:
        decisions = [router.submit(Query(text=f"Who wrote book {n}?"), run_by="worker").result(10) for n in range(3)]
        for decision in decisions[:2]:
            router.process.notifier.request_answers([decision.id])
        listener = RedisJobs(redis_client).listen(hear)
        while not heard:
            RedisJobs(redis_client).publish("hello")
        router.cancel(decisions[1].id)
        router.cancel(decisions[2].id)
        assert told.wait(5)
        listener.close()
        assert waiting_ids(router.database, limit=9) == [decisions[1].id, decisions[2].id, decisions[0].id]
        assert router.process.jobs.depth()["answer"] == 4
    router.process.jobs.client.close()
