"""Retention: old decisions leave with all their rows; totals, counters and the audit of the ledger stay right."""

import re
import threading

import pytest
from sqlalchemy import delete, event, func, insert, select

from ragbandit.router.storage import retention
from ragbandit.router.storage.paired_answers import store_answer
from ragbandit.router.storage.retention import Retention
from ragbandit.router.storage.sql.counters import GONE, Increments, recount, row_counts, stored_counts
from ragbandit.router.storage.sql.tables import (
    closures,
    decisions,
    feedback,
    jobs,
    outcomes,
    paired_answers,
    snapshots,
    updates,
    waiting,
)
from ragbandit.router.storage.totals import TotalsExtender, totals_ever
from ragbandit.shared.errors import NotFound
from tests.support.audits import assert_compared, verified
from tests.support.examples import made_paired_answer

DAY = 86_400.0
TABLES = (decisions, outcomes, feedback, paired_answers, updates, closures, waiting, jobs)


def lived(world, *, days=10):
    """Three decisions a day: rated, never rated until it expires, and without an outcome; learned day by day."""
    made = []
    for day in range(days):
        rated, silent, lost = (world.route() for _ in range(3))
        for decision in (rated, silent):
            world.outcome(decision, cost={"dollars": 0.25, "seconds_total": 0.5})
        world.feedback(rated, rating=day % 2)
        assert store_answer(world.database, made_paired_answer(rated, arm=rated.arm))
        made += [rated, silent, lost]
        world.learn()
        world.now += DAY
    world.learn()
    count(world)
    return made


def count(world):
    """Bring the hourly totals up to now."""
    extender = TotalsExtender(world.database, holder="totals", weight=0.05, clock=lambda: world.now)
    while extender.extend(seconds=30.0):
        pass
    extender.release()


def leave(world, *, days):
    """Let every decision leave that may."""
    router = Retention(world.database, holder="one", clock=lambda: world.now, days=days)
    while router.step() is not None:
        pass
    router.release()


def stored(world, table=decisions):
    with world.database.read() as connection:
        return set(connection.execute(select(table.c["id" if table is decisions else "decision_id"])).scalars())


def assert_right(world):
    """Counters agree with tables and what left; no row refers to a decision that left; the audit finds no fault."""
    with world.database.read() as connection:
        assert stored_counts(connection, label="main") == row_counts(connection, label="main")
    assert world.counters().balanced
    here = stored(world)
    for table in TABLES[1:]:
        assert stored(world, table) <= here
    verdict = world.router.verify(deep=True)
    assert verdict.ok, verdict.notes
    return verdict


def test_by_age(world, other_processor):
    """What is older leaves with its rows; what still waits stays; counts, totals and the policy are as before. Another
    processor learns the policy again from a snapshot after the rows that left.
    """
    made = lived(world)
    with world.database.read() as connection:
        before = stored_counts(connection, label="main"), totals_ever(connection, policy="main")
    sha256 = world.router.verify().live_sha256
    leave(world, days=4.5)
    with world.database.read() as connection:
        assert (stored_counts(connection, label="main"), totals_ever(connection, policy="main")) == before
        left = stored_counts(connection, label="main", prefix=GONE)
    old = {one.id for one in made if one.made_at < world.now - 4.5 * DAY}
    young = {one.id for one in made} - old
    waits = stored(world, waiting)
    assert 0 < len(old - waits) < len(old)
    assert stored(world) == young | waits
    assert (left["decided"], left["learned"]) == (len(old - waits), 6)
    verdict = assert_right(world)
    assert (verdict.archived, verdict.live_sha256, verdict.replay_sha256) == (6, sha256, sha256)
    assert_compared(other_processor.call(verified, world.settings))
    with pytest.raises(NotFound):
        world.router.decision(min(old - waits))
    with world.database.write() as connection:
        assert recount(connection) == {}
    # The ledger goes on, and a learner that starts again continues from its snapshot.
    world.judged(3)
    world.learn()
    assert assert_right(world).updates == len(stored(world, updates))


def test_what_is_needed_stays(world):
    """Rows that no total has yet stay; so do updates that no snapshot has, and the newest update of a ledger."""
    lived(world, days=3)
    world.now += 90 * DAY
    uncounted = [world.route() for _ in range(3)]
    world.now += 90 * DAY
    world.learn()
    assert stored(world, waiting) == set()
    with world.database.write() as connection:
        snapshot = select(snapshots).order_by(snapshots.c.last_seq.desc())
        first, last = [dict(row) for row in connection.execute(snapshot).mappings()][::2][:2]
        connection.execute(delete(snapshots).where(snapshots.c.last_seq > last["last_seq"]))
    leave(world, days=1)
    assert {one.id for one in uncounted} <= stored(world)
    with world.database.write() as connection:
        assert list(connection.execute(select(updates.c.seq).order_by(updates.c.seq)).scalars()) == [2, 3]
        connection.execute(insert(snapshots), [first])
    world.now += DAY
    newer = world.route()
    world.outcome(newer)
    world.now += DAY
    count(world)
    leave(world, days=1)
    assert stored(world) == {newer.id} | stored(world, updates)
    assert len(stored(world)) == 2
    assert assert_right(world).archived == 2


def test_a_row_that_nothing_explains_is_a_fault(world):
    """Verify reports a missing update that did not leave by age."""
    lived(world)
    leave(world, days=4.5)
    with world.database.write() as connection:
        last = connection.execute(select(func.max(updates.c.seq))).scalar_one()
        connection.execute(delete(updates).where(updates.c.seq == last - 1))
    verdict = world.router.verify()
    assert (verdict.ok, verdict.ledger_mismatches) == (False, 1), verdict.notes


def test_while_others_write(world, monkeypatch):
    """Routes, outcomes and ratings that come in while decisions leave are all stored, and none of them leaves."""
    lived(world, days=4)
    old = stored(world)
    monkeypatch.setattr(retention, "FEWEST", 1)
    monkeypatch.setattr(retention, "MOST", 1)
    thread = threading.Thread(target=leave, args=(world,), kwargs={"days": 1e-6})
    thread.start()
    fresh = []
    while thread.is_alive() or len(fresh) < 10:
        fresh.append(world.judged(1))
    thread.join()
    assert len(stored(world) & old) < len(old)
    assert len(stored(world) - old) == len(fresh)
    world.learn()
    assert_right(world)


def test_an_index_finds_them(world):
    """The oldest decisions are found, and rows about them deleted, in ranges of indexes; no statement scans a table."""
    lived(world)
    plans: list[str] = []
    explain = "EXPLAIN QUERY PLAN " if world.database.is_sqlite else "EXPLAIN "

    def explained(connection, cursor, statement, parameters, context, executemany):
        if statement.startswith(("SELECT", "DELETE", "WITH")) and "decision" in statement and not executemany:
            cursor.execute(explain + statement, parameters)
            plans.append(f"{statement}\n" + "\n".join(str(row) for row in cursor.fetchall()))
            cursor.fetchall()

    leaving = Retention(world.database, holder="one", clock=lambda: world.now, days=1)
    with world.database.write(foreign_keys=False) as connection:
        if not world.database.is_sqlite:  # which scans a table of few rows
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        leaving.update_bounds(connection)
        event.listen(connection, "before_cursor_execute", explained)
        assert leaving.delete_next(connection, world.now, limit=3, tally=Increments())
    assert len(plans) >= 9
    assert not [plan for plan in plans if re.search(r"'SCAN (?!policies)|Seq Scan on (?!policies)", plan)], plans
