"""Overview: what was earned in a time, at the same cost in a store of any size."""

import math
import re
import threading
import time
from functools import partial

import pytest
from sqlalchemy import event, text

from ragbandit.router.learning.exclusions import learn_new_ledger
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.router.serving.overview import overview
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.errors import InvalidInput
from tests.conftest import World
from tests.integration.storage.test_totals import lived
from tests.support.examples import made_decision


@pytest.fixture(scope="module")
def world(module_settings):
    """A world with ten decisions in two hours, all of them counted; nothing below changes it."""
    new_world = World(module_settings())
    lived(new_world)
    TotalsExtender(new_world.database, holder="one", weight=0.05, clock=lambda: new_world.now + 60.0).extend()
    yield new_world
    new_world.close()


def read(world, **changes):
    given = {"policy": "main", "since": world.now - 10_000.0, "until": world.now, "weight": 0.05, **changes}
    return overview(world.database, **given)


def test_arms_and_points_add_up(world):
    """Shares add up to one; the points, those without any count among them, to the totals."""
    found = read(world)
    assert found.totals.decided == 10
    assert sum(arm.share for arm in found.arms) == pytest.approx(1.0)
    assert sum(point.totals.decided for point in found.points) == 10
    assert len(found.points) == (found.until - found.since) / 3600
    assert [point.at for point in found.points] == sorted(point.at for point in found.points)
    whole = read(world, step=86_400)
    assert len(whole.points) == 1
    assert whole.points[0].totals.answered == 10


def test_arms_of_callers_and_of_the_kill_switch_are_counted(make_world):
    """An overview counts the decisions whose arm the caller chose, and those of the kill switch."""
    world = make_world()
    for number, by in enumerate((None, "caller", "kill switch", "kill switch", "limit")):
        world.store.add_decisions([made_decision(f"d-{number}", made_at=world.now, arm_by=by)])
    totals = read(world, until=world.now + 60.0).totals
    assert (totals.decided, totals.forced, totals.killed) == (5, 1, 2)


def test_what_is_not_counted_yet_is_read(make_world, monkeypatch):
    """An overview of a store that nobody counts is that of the same store when it is counted; with too many rows to
    read, it says how far it is behind.
    """
    fresh = make_world()
    lived(fresh)
    found = read(fresh)
    assert (found.totals.decided, found.totals.answered, found.totals.learned) == (10, 10, 6)
    assert (found.counted_to, found.behind_s, found.updates_behind) == (fresh.now, 0.0, 0)
    TotalsExtender(fresh.database, holder="one", weight=0.05, clock=lambda: fresh.now + 60.0).extend()
    assert read(fresh).totals == found.totals
    fresh.now += 700.0
    fresh.route()
    assert read(fresh).totals.decided == 11
    monkeypatch.setattr("ragbandit.router.serving.overview.MOST_UNCOUNTED", 1)
    behind = read(fresh)
    assert (behind.totals.decided, behind.behind_s, behind.updates_behind) == (10, 700.0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 60},
        {"step": 5400},
        {"since": 5e9},
        {"since": math.nan},
        {"since": 0.0},
        {"step": 3600, "since": 1.69e9},
    ],
)
def test_times_that_cannot_be_told_are_refused(world, wrong):
    """A step of a fraction of an hour, an invalid time, and a too long series are refused."""
    with pytest.raises(InvalidInput):
        read(world, **wrong)


def test_no_statement_reads_a_whole_table(world):
    """Every statement of an overview is a search of an index, or the largest key of one."""
    statements, here = [], threading.get_ident()

    def seen(_connection, _cursor, statement, parameters, _context, _many):
        if threading.get_ident() == here:  # the router's own threads look for news now and then
            statements.append((statement, parameters))

    event.listen(world.database.engine, "before_cursor_execute", seen)
    read(world)
    event.remove(world.database.engine, "before_cursor_execute", seen)
    big = ("decisions", "outcomes", "updates", "arm_hours", "feedback", "waiting")
    found = [(s, p) for s, p in statements if any(f"FROM {name}" in s.replace("\n", " ") for name in big)]
    assert len(found) == 5  # three of them read what the totals lack
    with world.database.read() as connection:
        for statement, parameters in found:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            assert not [row for row in plan if row[3].startswith("SCAN") and "INDEX" not in row[3]], plan
        assert connection.execute(text("SELECT 1")).scalar() == 1


def test_ratings_of_one_arm_alone_are_told_of(make_world):
    """If only the answers of one arm are rated, the state names the arm an hour later."""
    world = make_world(now=time.time() - 9000.0, policy={"name": "uniform"})
    arms = world.router.service.arms
    for _ in range(200):  # with 100, one run in sixty has too little evidence
        decision = world.route()
        world.outcome(decision)
        if decision.arm == arms[0]:
            world.feedback(decision, rating=0.5)
    world.learn()
    TotalsExtender(world.database, holder="one", weight=0.05, clock=lambda: world.now + 60.0).extend()
    uneven = world.router.state().earned.uneven
    assert uneven.stage == "judged"
    assert re.match(rf"arm {arms[0]} has 100 % of its answers rated and \w+ 0 %: comparisons", uneven.sentence)


def reported(world, *, label=None, days):
    """What a report of the last days lacks for a verdict."""
    now = world.now + 7200.0
    scope = ReportScope(label=label or world.store.label, since=now - days * 86_400.0, until=now)
    return report(world.database, scope, policy=world.settings.policy).total.missing


def uneven_world(make_world, *, days):
    """A world whose questions of some days ago have ratings for the answers of one arm only."""
    world = make_world(now=time.time() - days * 86_400.0, policy={"name": "uniform"})
    for _ in range(200):
        decision = world.route()
        world.outcome(decision)
        if decision.arm == world.router.service.arms[0]:
            world.feedback(decision, rating=0.5)
    world.learn()
    TotalsExtender(world.database, holder="one", weight=0.05, clock=lambda: world.now + 60.0).extend()
    return world


def test_a_report_checks_its_whole_period(make_world):
    """Ratings of one arm that are four weeks old keep a report that has them from a verdict."""
    world = uneven_world(make_world, days=28)
    world.now += 27.0 * 86_400.0
    assert "comparisons of quality wait" in reported(world, days=30)


def test_draws_of_a_former_ledger_are_checked(make_world):
    """A ledger that is learned from the whole store inherits the alarm about the draws of the previous ledger."""
    world = uneven_world(make_world, days=1)
    learn = {"make_learner": partial(make_learner, world.settings), "now": world.now, "progress": lambda _: None}
    learn_new_ledger(world.ledger, label="second", **learn)
    assert "comparisons of quality wait" in reported(world, label="second", days=7)
