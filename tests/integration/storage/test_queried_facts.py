"""Facts in columns: readers read the same from the columns, from JSON where a former release made the row, and while
the columns are being filled.
"""

from contextlib import closing
from functools import partial

import pytest
from sqlalchemy import select, update

from ragbandit.router.learning.exclusions import learn_new_ledger, next_label
from ragbandit.router.operation.findings import findings_of_store
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.decisions.chains import followers
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.rows import filling
from ragbandit.router.storage.rows.filling import count_unfilled, fill, limited_rows
from ragbandit.router.storage.rows.queried_facts import QueriedFacts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.move import move
from ragbandit.router.storage.sql.tables import decisions
from tests.conftest import on_sqlite
from tests.support.stored_facts import EMPTY, STORED, UNFILLED, assert_filled, readings, row_of_former_release


@pytest.fixture
def world(make_world, database_url):
    """A store of a former release: rows without columns of facts, with outcomes, labels and updates."""
    world = make_world(database_url=database_url)
    for number, _ in enumerate(STORED):
        decision = world.route(key=f"d{number}")
        world.outcome(decision, cost={"dollars": 0.25})
        if number % 3 == 0:
            world.feedback(decision, rating=True)
        world.now += 60.0
    world.learn()
    for number, _ in enumerate(STORED):
        world.write(update(decisions).where(decisions.c.id == f"d{number}").values(row_of_former_release(number)))
    return world


def read(world):
    return readings(world.router, until=world.now)


def stop_at(count):
    """A progress that interrupts the filling after `count` rows."""

    def progress(done, of):
        assert of == len(STORED)
        if done >= count:
            raise KeyboardInterrupt

    return progress


def test_readers_read_the_same_while_columns_are_filled(world, monkeypatch):
    """Reports, totals, erasure, sessions, queues, ledger and audit are the same before, between and after batches."""
    monkeypatch.setattr(filling, "BATCH", 4)
    before = read(world)
    assert before["followers"][1] > before["followers"][0] > set()
    assert before["imported"] == 1
    assert before["newest"] == "d7"
    with pytest.raises(KeyboardInterrupt):
        fill(world.database, progress=stop_at(8))
    assert count_unfilled(world.database) == len(STORED) - 8
    assert read(world) == before
    assert fill(world.database, progress=lambda done, of: None) == len(STORED) - 8
    assert count_unfilled(world.database) == 0
    assert read(world) == before


def test_columns_are_those_of_the_json(world):
    """A filled row has the facts of its JSON; rows that a former release makes afterwards are filled by another run."""
    fill(world.database, progress=lambda done, of: None)
    with world.database.read() as connection:
        rows = connection.execute(select(decisions).order_by(decisions.c.made_at)).mappings().all()
    assert_filled(world.database)
    facts = {row["id"]: QueriedFacts.of_row(row) for row in rows}
    assert [key for key in facts if facts[key].is_undrawn] == ["d1", "d2", "d3", "d4", "d11", "d18"]
    assert [key for key in facts if facts[key].is_moved] == ["d9", "d10", "d11"]
    assert facts["d6"].budget_factor == 8.0
    assert (facts["d7"].task_until, facts["d7"].is_of_agent, facts["d8"].is_of_agent) == (9.0, False, True)
    assert facts["d14"].responses == '["d0", "d2"]'
    assert [facts[f"d{number}"] for number in (12, 15, 16, 17)] == [facts["d0"]] * 4
    world.write(update(decisions).where(decisions.c.id == "d5").values(EMPTY))
    assert fill(world.database, progress=lambda done, of: None) == 1


def test_a_decision_is_stored_with_its_columns(make_world, database_url):
    """The router writes the columns of every decision, so nothing remains to fill."""
    world = make_world(database_url=database_url)
    world.route(key="named")
    world.route()
    assert count_unfilled(world.database) == 0
    with world.database.read() as connection:
        named = connection.execute(select(decisions.c.id).where(decisions.c.has_callers_id)).scalars().all()
    assert named == ["named"]


def test_erasure_of_a_filled_row_leaves_its_links(world):
    """Erasure blanks the JSON and keeps the columns, which have ids, flags and numbers only."""
    fill(world.database, progress=lambda done, of: None)
    with world.database.read() as connection:
        before = followers(connection, decisions.c.id == "d0", chains=True)
    erase(world.database, Selection(decision="d14"), features=False, actor="cli:me", now=world.now)
    with world.database.read() as connection:
        assert followers(connection, decisions.c.id == "d0", chains=True) == before


def test_erasure_leaves_the_facts_of_a_row_that_is_not_filled(world, monkeypatch):
    """Erasure gives a row its columns before it blanks the JSON, so it does not matter whether `migrate` came first."""
    monkeypatch.setattr(filling, "BATCH", 4)
    with world.database.read() as connection:
        rows = connection.execute(select(decisions)).mappings().all()
    facts = {row["id"]: QueriedFacts.of_unfilled(row)._asdict() for row in rows}
    with pytest.raises(KeyboardInterrupt):
        fill(world.database, progress=stop_at(8))
    erase(world.database, Selection(tenant="default"), features=False, actor="cli:me", now=world.now)
    assert count_unfilled(world.database) == 0
    with world.database.read() as connection:
        erased = {row["id"]: row for row in connection.execute(select(decisions)).mappings()}
    assert {key: {name: row[name] for name in facts[key]} for key, row in erased.items()} == facts
    assert {row["text"] for row in erased.values()} == {""}


@on_sqlite
def test_a_row_of_schema_1006_keeps_its_columns(world):
    """Such a row lacks only who chose its arm. Filling it keeps the other columns, also after its JSON was erased."""
    fill(world.database, progress=lambda done, of: None)
    erase(world.database, Selection(tenant="default"), features=False, actor="cli:me", now=world.now)
    chosen = {"d2": "task", "d3": "caller", "d4": "caller", "d11": "failover"}
    with world.database.read() as connection:
        before = {row["id"]: dict(row) for row in connection.execute(select(decisions)).mappings()}
    assert before["d6"]["budget_factor"] == 8.0
    world.write(update(decisions).values(UNFILLED))
    assert fill(world.database, progress=lambda done, of: None) == len(STORED)
    with world.database.read() as connection:
        after = {row["id"]: dict(row) for row in connection.execute(select(decisions)).mappings()}
    assert {key: row | UNFILLED for key, row in after.items()} == {key: row | UNFILLED for key, row in before.items()}
    assert {key: after[key]["arm_by"] for key in chosen} == chosen


def test_learned_rows_of_limits_are_counted_once(world, monkeypatch):
    """`status` names the rows that a former release learned from decisions of a limit, and `policy relearn`
    leaves them out.
    """
    monkeypatch.setattr(filling, "BATCH", 4)
    with pytest.raises(KeyboardInterrupt):
        fill(world.database, progress=stop_at(8))
    for _ in range(2):
        fill(world.database, progress=lambda done, of: None)
    (found,) = [
        one
        for one in findings_of_store(world.database, settings=world.settings, now=world.now)
        if one.about == "limits"
    ]
    assert found.what == "a former release learned 1 decision that a limit of a session or task made"
    label, learned = next_label(world.ledger), world.ledger.last_seq()
    made = learn_new_ledger(
        world.ledger,
        label=label,
        make_learner=partial(make_learner, world.settings),
        now=world.now,
        progress=lambda _: None,
    )
    left_out = [key for key in ("d3", "d18") if key in {row["decision_id"] for row in world.updates()}]
    assert made["updates"] == learned - len(left_out)
    with world.database.read() as connection:
        assert [limited_rows(connection, label=one) for one in ("main", label)] == [1, 0]


@on_sqlite
def test_copies_of_a_half_filled_store_are_filled(world, tmp_path, empty_postgres_url, monkeypatch):
    """A backup, and a move to PostgreSQL, copy rows with and without columns; the copy is filled like the original."""
    monkeypatch.setattr(filling, "BATCH", 4)
    with pytest.raises(KeyboardInterrupt):
        fill(world.database, progress=stop_at(8))
    world.database.copy_sqlite(file := tmp_path / "backup.db")
    backup = f"sqlite:///{file}"
    with closing(Database(backup, read_only=True)) as source, closing(Database(empty_postgres_url)) as target:
        move(source, target, progress=lambda done, of: None)
    for url in (backup, empty_postgres_url):
        with closing(Database(url)) as copy:
            assert count_unfilled(copy) == len(STORED) - 8
            assert fill(copy, progress=lambda done, of: None) == len(STORED) - 8
            assert_filled(copy)
