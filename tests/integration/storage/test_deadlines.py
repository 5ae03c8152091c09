"""The time that decides what is deleted, given up or paid again, while the clock of a host is wrong."""

import time

import pytest
from sqlalchemy import func, select

from ragbandit.router.operation.findings import findings_of_store
from ragbandit.router.storage.access.audit_log import CLOCK_ACTION, entries
from ragbandit.router.storage.retention import Retention
from ragbandit.router.storage.sql.deadlines import QUIET_S, DeadlineClock
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.processes.steady_clock import SLACK_S, TRUST_S, SteadyClock
from ragbandit.workers.chores.clock import record_clock_change

DAY = 86_400.0


@pytest.fixture
def world(make_world, database_url):
    return make_world(database_url=database_url, now=time.time())


class HostClock:
    """The wall clock of a host, `ahead` seconds ahead, `passed` seconds after its process began."""

    def __init__(self, database):
        self.ahead = self.passed = 0.0
        steady = SteadyClock(wall=self.wall, monotonic=self.monotonic)
        self.deadlines = DeadlineClock(database, steady=steady, wall=self.wall, monotonic=self.monotonic)

    def wall(self):
        return time.time() + self.ahead + self.passed

    def monotonic(self):
        return time.monotonic() + self.passed


def deadlines(world, clock):
    """The clock of a process that begins now."""
    steady = SteadyClock(wall=clock.wall, monotonic=clock.monotonic)
    return DeadlineClock(world.database, steady=steady, wall=clock.wall, monotonic=clock.monotonic)


def learned(world):
    """A learned decision on each of four days, the last one now, all of them counted in the totals."""
    for day in range(3, -1, -1):
        world.now = time.time() - day * DAY
        decision = world.route()
        world.outcome(decision)
        world.feedback(decision, rating=1)
        world.learn()
    extender = TotalsExtender(world.database, holder="totals", weight=0.05, clock=lambda: world.now)
    while extender.extend():
        pass
    extender.release()


def count(world):
    with world.database.read() as connection:
        return connection.execute(select(func.count()).select_from(decisions)).scalar_one()


def test_a_jump_of_the_clock_deletes_nothing(world):
    """Retention deletes nothing while a clock is 40 days ahead, and what is old when 40 days have passed."""
    learned(world)
    clock = HostClock(world.database)
    retention = Retention(world.database, holder="one", days=30, clock=clock.deadlines.for_deletion)
    clock.ahead = 40 * DAY
    retention.step()
    assert count(world) == 4
    clock.ahead, clock.passed = 0.0, 40 * DAY
    retention.step()
    # PostgreSQL's own clock says that no time has passed.
    assert (count(world) < 4) == world.database.is_sqlite


def test_a_clock_that_is_wrong_from_the_start_deletes_nothing(world):
    """A process that begins with a wrong clock takes the newest decision, or PostgreSQL, as the measure of age."""
    learned(world)
    clock = HostClock(world.database)
    clock.ahead = 40 * DAY
    clock.deadlines = deadlines(world, clock)
    assert clock.deadlines.for_deletion() <= world.now + QUIET_S + 60.0
    world.now += 40 * DAY  # a decision with the wrong time, and a restart
    world.route()
    clock.deadlines = deadlines(world, clock)
    assert clock.deadlines.for_deletion() <= time.time() + 2 * QUIET_S + 60.0
    world.now -= 40 * DAY
    clock.passed = TRUST_S
    assert (clock.deadlines.for_deletion() > world.now + 39 * DAY) == world.database.is_sqlite


def test_a_jump_is_a_finding_until_it_is_over(world):
    """The audit log has one entry when the clock is ahead and one when it is right, and a finding in between."""
    clock = HostClock(world.database)
    for ahead in (0.0, SLACK_S / 2, 40 * DAY, 40 * DAY, 0.0, 0.0):
        clock.ahead = ahead
        record_clock_change(clock.deadlines, host="one")
        found = findings_of_store(world.database, settings=world.settings, now=world.now)
        words = [finding.what for finding in found if finding.about == "clock"]
        assert bool(words) == (ahead > SLACK_S), words
        assert all("one is 40 d ahead" in text for text in words)
    stored = [entry.facts["ahead_s"] for entry in entries(world.database) if entry.action == CLOCK_ACTION]
    assert stored == [pytest.approx(40 * DAY, abs=60), 0]
