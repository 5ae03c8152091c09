"""Counters on SQLite and PostgreSQL: whatever writes, and however many at once, they are what the tables have."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import event, select, update

from ragbandit.router.learning.status import read_status
from ragbandit.router.offline.logs.ledger_transfer import import_rows, ledger_rows
from ragbandit.router.storage.cancellations import cancel
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.closing import ClosingRule
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.counters import Increments, recount, row_counts, stored_counts
from ragbandit.router.storage.sql.database import SHARDS, Database
from ragbandit.router.storage.sql.tables import counters, policies


def assert_kept(database) -> dict[str, dict[str, int]]:
    """Every counter is what the tables have; the counters by label."""
    with database.read() as connection:
        labels = list(connection.execute(select(policies.c.label)).scalars())
        found = {label: stored_counts(connection, label=label) for label in labels}
        assert found == {label: row_counts(connection, label=label) for label in labels}
    return found


def use(world, seed: int) -> None:
    """Decisions of both kinds; feedback, some of it twice; outcomes; cancellations."""
    chance = random.Random(seed)
    for _ in range(15):
        decision = world.route(ours=chance.random() < 0.5)
        kind = chance.random()
        if kind < 0.5:
            world.feedback(decision, reward=0.5)
        elif kind < 0.8:
            for _ in range(2):
                world.feedback(decision, rating=1, feedback_id=f"f-{decision.id}")
        if kind > 0.3:
            world.outcome(decision, by_worker=decision.run_by == "worker")
        elif decision.run_by == "worker":
            cancel(world.database, decision_id=decision.id, now=world.now)


def test_everything_at_once(make_world, database_url, tmp_path):
    """Two routers, reports, feedback with repetitions, learning, cancelling and an import leave exact counters."""
    world = make_world(database_url=database_url)
    other = make_world(database_url=database_url, policy={"label": "second"})
    elsewhere = make_world(data_dir=str(tmp_path / "third"), policy={"label": "third"})
    elsewhere.judged(12, reward=0.5)
    elsewhere.learn()
    log = list(ledger_rows(elsewhere.ledger))
    taken = Ledger(world.database, label="taken")
    with ThreadPoolExecutor(7) as pool:
        work = [pool.submit(use, one, seed) for seed, one in enumerate((world, other, world, other))]
        work += [pool.submit(lambda one: [one.learn() for _ in range(4)], one) for one in (world, other)]
        work.append(pool.submit(import_rows, taken, lambda: log, origin="jsonl"))
        for one in work:
            one.result(60)
    assert_kept(world.database)
    for one in (world, other):
        one.now += 40 * 86_400  # the windows are over: what was not judged is closed
        one.learn()
    found = assert_kept(world.database)
    assert {label: facts["waiting"] for label, facts in found.items()} == {"main": 0, "second": 0, "taken": 60}
    assert found["main"]["decided"] == 72
    assert min(found["main"][name] for name in ("learned", "closed", "feedback", "late_feedback")) > 0


def test_rolled_back_moves_nothing(database, make_decision):
    """A group that the database refuses leaves rows and counters as they were."""
    store = DecisionStore(database, label="main")
    register_policy(database, label=store.label, algorithm="uniform", params="{}", encoder_hash="", now=1.0)
    store.add_decisions([make_decision("d1")])
    with pytest.raises(Exception, match=r"(?i)not.null"):
        store.add_decisions([make_decision("d2"), replace(make_decision("d3"), arm=None)])
    assert assert_kept(database)["main"]["decided"] == 1
    assert list(store.decisions_by_id(["d1", "d2", "d3"])) == ["d1"]


def test_processes_move_rows_of_their_own(postgres_url):
    """On PostgreSQL two processes do not wait for each other at a counter: the other's transaction is still open."""
    first, second = Database(postgres_url), Database(postgres_url)
    first.shard, second.shard = 0, SHARDS - 1
    try:
        with first.write() as one, second.write() as two:
            for connection, database in ((one, first), (two, second)):
                tally = Increments()
                tally.add("decided", 2)
                tally.write(connection, shard=database.shard)
        with first.read() as connection:
            assert stored_counts(connection, label="main")["decided"] == 4
    finally:
        first.close()
        second.close()


def test_verify_finds_a_wrong_counter_and_recount_corrects_it(make_world, database_url):
    """Verify names the counter that differs from its table; recount says what it was and is, and verify is content."""
    world = make_world(database_url=database_url)
    world.judged(3)
    world.learn()
    world.write(update(counters).where(counters.c.name == "learned").values(value=counters.c.value + 5))
    verdict = world.router.verify()
    assert (verdict.ok, verdict.counter_mismatches) == (False, 1)
    assert "learned is 8, the tables have 3" in verdict.notes[0]
    assert "recount" in verdict.notes[0]
    with world.database.write() as connection:
        assert recount(connection) == {"main learned": (8, 3)}
        assert recount(connection) == {}
    assert world.router.verify().ok


def test_status_reads_no_history(make_world, database_url):
    """No statement of a status goes through decisions, updates, feedback, closures or outcomes as a whole."""
    world = make_world(database_url=database_url)
    world.judged(4)
    statements: list[str] = []
    event.listen(world.database.engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    rule = ClosingRule(wait_s=0.0, expire_s=10.0)
    read_status(world.ledger, serving=world.router.process.versions.snapshots.untrained, rule=rule, now=world.now)
    assert statements
    counting = [one for one in statements if "count(" in one.lower()]
    assert [one for one in counting if "FROM jobs" not in one] == []  # it has 10,000 rows of checks at most
