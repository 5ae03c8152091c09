"""Sixteen questions at once in one answer process: killed or told to end it loses none, and one can be cancelled."""

import signal

import pytest

from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.answers import waiting_ids
from tests.support.claims import claims

from .conftest import running_systems, until


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    with running_systems(tmp_path_factory.mktemp("at-once")) as make:
        yield make(
            queues=("answer",),
            arms={"single_step": {}, "multi_step": {"rounds": 10}},
            policy={"name": "uniform", "fallback": "single_step"},
            generator={
                "name": "scripted",
                "script": {"Brooding": "Paris lies on the Seine.", "": "So the answer is: Paris."},
                "script_s": 2.0,  # so long that sixteen run at once, however slowly they are taken
            },
            # No sweep of the database: what a process leaves behind is queued again by claims alone.
            workers={"sweep_interval_s": 600.0, "concurrency": 16},
        )


def test_sixteen_at_once(system):
    """SIGTERM ends the process when its sixteen are answered, the rest stays queued; what kill -9 ends runs again."""
    store = DecisionStore(open_database(system.settings), label="main")
    jobs = RedisJobs(connect_redis(f"unix://{system.redis.socket}"))
    ids = [f"q-{number}" for number in range(48)]

    def running():
        return claims(store.database)

    def lost():
        """Neither answered nor queued."""
        return set(ids) - set(store.outcomes_by_id(ids)) - set(waiting_ids(store.database, limit=100))

    def end():
        system.processes["answer"].send_signal(signal.SIGTERM)
        assert system.processes["answer"].wait(60) == 0
        assert running() == {}

    until(lambda: sum(worker.queue == "answer" for worker in jobs.workers()) == 16)  # before, a signal just kills
    end()
    with system.client() as client:
        for key in ids:
            client.answer("Capital of France?", decision_id=key, arms=["single_step"], wait_s=0)
    system.start_process("answer")
    until(lambda: len(running()) == 16)
    end()
    assert 16 <= len(store.outcomes_by_id(ids)) <= 32
    assert lost() == set()
    system.start_process("answer")
    until(lambda: len(running()) == 16)
    system.restart("answer")
    until(lambda: len(store.outcomes_by_id(ids)) == 48)
    assert {each.status for each in store.outcomes_by_id(ids).values()} == {"answered"}
    assert (running(), lost()) == ({}, set())
    store.database.close()
    jobs.client.close()
