"""A host's clock that jumps ahead, and what waits for feedback meanwhile."""

import time

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.sql.store_clock import StoreClock
from ragbandit.router.storage.sql.tables import updates
from ragbandit.shared.processes.steady_clock import SteadyClock
from ragbandit.shared.types import Query, TaskTurn
from tests.conftest import on_sqlite

HOUR, DAY = 3600.0, 86_400.0


class HostClock:
    """The clock of a host, which is `ahead` seconds ahead, after `passed` more seconds."""

    def __init__(self):
        self.ahead = self.passed = 0.0

    def wall(self):
        return time.time() + self.ahead + self.passed

    def monotonic(self):
        return time.monotonic() + self.passed

    def of(self, database):
        steady = SteadyClock(wall=self.wall, monotonic=self.monotonic)
        server_time = None if database.is_sqlite else database.server_time
        return StoreClock(server_time, steady=steady, wall=self.wall, monotonic=self.monotonic)


@pytest.fixture
def host(settings, database_url):
    """A function: a router on a host whose clock is some seconds ahead from the start, and that clock."""
    opened = []

    def open_router(*, ahead=0.0, **sections):
        clock = HostClock()
        clock.ahead = ahead
        router = Router.open(settings(database_url=database_url, **sections), jobs=MemoryJobs())
        opened.append(router)
        router.database.clock = clock.of(router.database)
        router.database.clock.measure()
        return router, clock

    yield open_router
    for router in opened:
        router.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_host_that_is_ahead_keeps_the_tasks_of_others(host, database_url):
    """A host whose clock is 40 days ahead of PostgreSQL continues open tasks, and leaves none open for 40 days."""
    (right, _), (wrong, _) = (host(ahead=ahead, conversation={"unit": "task"}) for ahead in (0.0, 40 * DAY))
    first = right.route(Query(text="first?", session="chat"))
    second = wrong.route(Query(text="second?", session="chat"))
    third = right.route(Query(text="third?", session="chat"))
    assert (second.turn_of, third.turn_of) == (first.id, first.id)
    assert TaskTurn.of(second.facts).until < time.time() + HOUR
    own = wrong.route(Query(text="another?", session="chat-2"))
    assert abs(own.made_at - time.time()) < 60.0
    assert right.route(Query(text="more?", session="chat-2")).turn_of == own.id
    wrong.outcome(own.id, answer="a", steps=1)
    assert abs(right.decision(own.id).outcome.made_at - time.time()) < 60.0
    assert wrong.end_session("chat-2", feedback={"rating": True}) == own.id
    assert right.route(Query(text="and now?", session="chat-2")).turn_of is None
    assert right.learn() == 1


@pytest.mark.parametrize("ahead", [HOUR, DAY])
@on_sqlite
def test_feedback_after_a_jump_is_learned_in_time(host, database_url, ahead):
    """What is decided and rated after a jump is learned after `wait_s`, during the jump and when it is over."""
    router, clock = host(learning={"wait_s": 2.0})
    clock.ahead = ahead
    for count in (1, 2):
        decision = router.route(f"question {count}?")
        assert router.feedback(decision.id, reward=0.5).late is False
        clock.passed += 3.0
        assert router.learn() == 1
        assert router.status().counters.learned == count
        clock.ahead = 0.0


@on_sqlite
def test_a_jump_gives_no_rater_a_second_day(host, database_url):
    """A rater's daily cap counts judgements before and after a jump to the next day."""
    router, clock = host(learning={"rater_per_day": 2})
    for count in range(4):
        decision = router.route(f"question {count}?")
        router.outcome(decision.id, answer="a", steps=1)
        router.feedback(decision.id, rating=True, rater="ann")
        clock.ahead = DAY * (count > 0)
    router.learn()
    with router.database.read() as connection:
        assert len(connection.execute(updates.select()).all()) == 2


def test_a_jump_closes_nothing_that_waits(tmp_path):
    """Feedback that comes after a jump of a month and back is learned; a month that has passed closes as ever."""
    arms = {"mine": {"run_by": "caller"}, "other": {"run_by": "caller"}}
    settings = Settings(data_dir=str(tmp_path), encoder={"model": "hashing"}, arms=arms)
    month, clock = 30 * DAY, HostClock()
    with Router.open(settings, jobs=MemoryJobs()) as router:
        router.database.clock = clock.of(router.database)
        judged, silent = router.route("first?"), router.route("second?")
        clock.ahead = month
        assert router.learn() == 0
        clock.ahead = 0.0
        assert router.feedback(judged.id, reward=1.0).late is False
        assert router.learn() == 1
        clock.passed = month
        assert router.learn() == 1
        assert (router.status().counters.learned, router.status().counters.closed) == (1, 1)
        assert silent.id != judged.id
