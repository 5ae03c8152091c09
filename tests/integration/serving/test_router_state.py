"""Router.state and Router.parts: what HTTP, metrics and command line show; and a Router that is not started."""

import threading

from ragbandit import Router
from ragbandit.router.encoders.base import HashingEncoder
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.setup.bootstrap import open_database


def test_state_follows_what_happens(make_world):
    """The state has the ledger's counts, the snapshot in use, lags and the jobs that wait."""
    world = make_world()
    before = world.router.state()
    assert (before.serving_last_seq, before.feedback_to_policy_ms.n) == (0, 0)
    world.judged(3)
    world.router.notifier.request_answers([world.route(ours=True).id])
    world.learn()
    after = world.router.state()
    assert (after.serving_last_seq, after.feedback_to_policy_ms.n) == (3, 3)
    assert (after.serving, after.label, after.algorithm) == (after.ledger.snapshot, "main", "mba")
    assert (after.ledger.counters.decided, after.ledger.counters.learned) == (4, 3)
    assert after.jobs["answer"] == 1
    assert [arm.state for arm in after.arms] == ["closed"] * 3


def test_a_router_that_is_not_started_does_nothing(settings):
    """Assembling a Router starts no thread and writes nothing; `start` makes it serve."""
    made = settings()
    database, threads = open_database(made), threading.active_count()
    with Router(made, encoder=HashingEncoder(dimension=8), database=database, jobs=MemoryJobs()) as router:
        assert threading.active_count() == threads
        assert (router.ledger.registered(), router.readiness.parts()["router"]) == (
            None,
            "its thread has ended, so no question is decided: restart the service",
        )
        router.start()
        assert router.readiness.parts() == {"router": "ok", "database": "ok", "redis": "ok"}
        assert router.route("Who wrote Dracula?").version == router.state().serving
