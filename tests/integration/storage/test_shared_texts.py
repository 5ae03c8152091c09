"""Shared texts on SQLite and PostgreSQL: what rows repeat stands once, and reads as if it stood in every row."""

import threading

import pytest
from sqlalchemy import delete, select, update

from ragbandit.router.errors import StoreError
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.sql import shared_texts as module
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.shared_texts import SharedTexts, texts_of, whole
from ragbandit.router.storage.sql.tables import decisions, outcomes, shared_texts
from ragbandit.router.types import Cost, Outcome

ENCODER = "e" * 64


def held(database) -> list[tuple[str, str]]:
    """Arms and encoder_hash as the rows hold them."""
    with database.read() as connection:
        rows = connection.execute(select(decisions.c.arms, decisions.c.encoder_hash).order_by(decisions.c.id))
        return [tuple(row) for row in rows]


def an_outcome(decision) -> Outcome:
    return Outcome(
        decision_id=decision.id,
        status="answered",
        answer="Bram Stoker",
        trace=(),
        cost=Cost(passages=2),
        steps=1.0,
        stop_reason="answer",
        error=None,
        run_by="caller",
        made_by={"generator": "small", "params": {"k": 5}},
        made_at=1.0,
    )


def texts(database) -> set[str]:
    with database.read() as connection:
        return set(connection.execute(select(shared_texts.c.text)).scalars())


def test_rows_hold_references_and_read_as_whole(database, make_decision):
    """Arms, encoder and what made an outcome stand once, whatever process wrote the rows; what is read has them."""
    made = [make_decision(f"d{n}", encoder_hash=ENCODER, features=None) for n in range(3)]
    done = [an_outcome(d) for d in made]
    for decision, outcome in zip(made, done, strict=True):
        store = DecisionStore(database, label="main")  # another process each time
        assert store.add_decisions([decision]) == [decision]
        assert store.add_outcome(outcome)
    rows = held(database)
    assert len(set(rows)) == 1
    assert all(value.startswith("#") for value in rows[0])
    assert len(texts(database)) == 3
    store = DecisionStore(database, label="main")
    assert [store.record(d.id).decision for d in made] == made
    assert [store.record(d.id).outcome for d in made] == done
    assert store.add_decisions(made) == made


def test_what_finds_no_place_stays_in_its_row(database, make_decision, monkeypatch):
    """The table has an end: a value that comes after it is kept in its row, and read as ever."""
    monkeypatch.setattr(module, "MOST", 1)
    store = DecisionStore(database, label="main")
    made = [make_decision(f"d{n}", encoder_hash=f"{n:064d}", features=None) for n in range(4)]
    for decision in made:
        store.add_decisions([decision])
    assert len(texts(database)) == 1
    assert sum(value.startswith("#") for row in held(database) for value in row) in (1, 4)
    assert [store.record(d.id).decision for d in made] == made


def test_a_row_of_before_is_read_beside_new_ones(database, make_decision):
    """Rows that hold their texts themselves and rows that refer to them read alike."""
    store = DecisionStore(database, label="main")
    made = [make_decision(f"d{n}", encoder_hash=ENCODER, features=None) for n in range(2)]
    store.add_decisions(made)
    with database.write() as connection:
        whole_rows = select(*whole(decisions)).where(decisions.c.id == "d0")
        found = connection.execute(whole_rows).mappings().one()
        old = {"arms": found["arms"], "encoder_hash": found["encoder_hash"]}
        connection.execute(update(decisions).where(decisions.c.id == "d0").values(**old))
    assert held(database)[0] == ('["no_retrieval","single_step","multi_step"]', ENCODER) != held(database)[1]
    assert [store.record(d.id).decision for d in made] == made


def test_a_text_that_was_rolled_back_is_not_known(database, make_decision, monkeypatch):
    """A process that failed to write a text does not refer to it afterwards."""
    known = SharedTexts(database)
    row = {"arms": '["a","b"]', "encoder_hash": ENCODER}

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(module, "insert_new", broken)
        with pytest.raises(RuntimeError, match="cut off"):
            known.shorten(decisions, [dict(row)])
    known.shorten(decisions, rows := [dict(row)])
    assert rows[0]["encoder_hash"].startswith("#")
    assert texts(database) == set(row.values())


def test_a_value_that_looks_like_a_reference_is_no_reference(database, make_decision, monkeypatch):
    """An encoder's hash that begins with "#", from a log, is read as it was, even where no place is left."""
    monkeypatch.setattr(module, "MOST", 0)
    store = DecisionStore(database, label="main")
    made = [make_decision(f"d{n}", encoder_hash=name, features=None) for n, name in enumerate(("#1", "#", "#x"))]
    for decision in made:
        store.add_decisions([decision])
    assert [store.record(d.id).decision for d in made] == made


def test_a_text_that_is_gone_is_damage(make_world, database_url):
    """Where somebody has deleted the shared texts, no decision is read as another: `verify` counts every one."""
    world = make_world(database_url=database_url)
    made = [world.route() for _ in range(3)]
    assert world.router.verify().ok
    world.write(delete(shared_texts))
    verdict = world.router.verify()
    assert (verdict.ok, verdict.propensity_mismatches) == (False, 3)
    with pytest.raises(StoreError, match="cannot be read"):
        world.store.record(made[0].id)


def test_many_values_are_read_at_once(database):
    """References and values of before come as texts, in their order; a reference to nothing is an error."""
    known = SharedTexts(database)
    known.shorten(outcomes, rows := [{"made_by": f'{{"k":"{n}"}}'} for n in range(3)])
    values = [rows[2]["made_by"], "{}", rows[0]["made_by"], rows[2]["made_by"]]
    with database.read() as connection:
        assert texts_of(connection, values) == ['{"k":"2"}', "{}", '{"k":"0"}', '{"k":"2"}']
        for broken in ("#999999", "#x"):
            with pytest.raises(StoreError, match=f"no shared text {broken}"):
                texts_of(connection, [broken])


def test_writers_at_once_agree(database):
    """Processes that meet the same texts at the same moment give them one number each, and none waits for another."""
    rows: list[dict[str, str]] = []
    begin = threading.Barrier(4)

    def write() -> None:
        other = Database(database.engine.url.render_as_string(hide_password=False))
        group = [{"made_by": f'{{"params":{{"k":{n}}}}}'} for n in range(20)]
        begin.wait()
        try:
            SharedTexts(other).shorten(outcomes, group)
        finally:
            other.close()
        rows.extend(group)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rows) == 80
    assert len({row["made_by"] for row in rows}) == len(texts(database)) == 20
    assert all(row["made_by"].startswith("#") for row in rows)
