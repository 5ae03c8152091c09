"""`verify` goes on from the newest checkpoint that it has passed, and says what it leaves out."""

import pytest
from sqlalchemy import delete, update

from ragbandit.router.storage.ledgers.checkpoints import CheckpointRows
from ragbandit.router.storage.sql.tables import decisions, feedback, outcomes, updates, waiting

EVERY = {"learning": {"checkpoint_every": 10, "batch": 5}}


def world_of(make_world, **given):
    """25 learned decisions, with checkpoints at 10 and 20, verified once."""
    world = make_world(**EVERY, **given)
    world.judged(25)
    world.learn()
    return world


def tampered(world, *, seq: int, **values):
    with world.database.write() as connection:
        connection.execute(update(updates).where(updates.c.seq == seq).values(**values))


def test_the_first_is_whole_and_the_next_goes_on(make_world, database_url):
    """The first verify checks all; the second begins at the newest checkpoint, and says what it leaves out."""
    world = world_of(make_world, database_url=database_url)
    first = world.router.verify()
    assert first.ok
    assert (first.decisions, first.updates, first.from_checkpoint, first.skipped_updates) == (25, 25, "", 0)
    world.now = 1.9e9  # of today's decisions every one is checked: some may have come in since
    world.judged(3)
    world.learn()
    second = world.router.verify()
    assert second.ok
    assert (second.decisions, second.updates) == (3, 8)
    assert (second.skipped_decisions, second.skipped_updates) == (25, 20)
    assert second.from_checkpoint.startswith("main-20-")
    assert second.verified_at is not None
    assert "not checked again: 25 decisions and updates 1 to 20" in second.notes[0]
    whole = world.router.verify(whole=True)
    assert (whole.ok, whole.decisions, whole.updates, whole.from_checkpoint) == (True, 28, 28, "")
    deep = world.router.verify(deep=True)
    assert (deep.ok, deep.decisions, deep.deep_decisions) == (True, 28, 28)


def test_without_a_checkpoint_all_is_checked(make_world):
    """A ledger too short for a checkpoint is checked from the beginning, every time."""
    world = make_world()
    world.judged(5)
    world.learn()
    for _ in range(2):
        verdict = world.router.verify()
        assert (verdict.ok, verdict.decisions, verdict.updates, verdict.from_checkpoint) == (True, 5, 5, "")


def test_what_is_after_the_checkpoint_is_seen(make_world):
    """A changed row after the checkpoint is a mismatch, and nothing is noted as passed."""
    world = world_of(make_world)
    world.router.verify()
    tampered(world, seq=24, quality=0.77)
    assert not world.router.verify().ok
    tampered(world, seq=24, made_at=1.0)
    assert any("chain" in note for note in world.router.verify().notes)


@pytest.mark.parametrize("values", [{"quality": 0.9, "value": 0.9}, {"made_at": 1.0}, {"terms": '{"steps":2.0}'}])
def test_what_was_passed_is_seen_by_the_whole(make_world, database_url, values):
    """A change of a row that an earlier verify has passed is found when the whole is asked for, by replay or chain."""
    world = world_of(make_world, database_url=database_url)
    assert world.router.verify().ok
    tampered(world, seq=4, **values)
    assert world.router.verify().ok
    assert not world.router.verify(whole=True).ok


def test_a_fault_is_not_passed(make_world):
    """A verify that finds a fault notes nothing: the next one looks at it again."""
    world = world_of(make_world)
    tampered(world, seq=4, propensity=0.123)
    for _ in range(2):
        verdict = world.router.verify()
        assert (verdict.ok, verdict.from_checkpoint) == (False, "")


def test_rows_that_went_or_came_behind_the_mark(make_world):
    """Where the number of decisions of that time has changed every decision is checked, and the verdict says so."""
    world = world_of(make_world)
    idle = world.route()
    assert world.router.verify().ok
    with world.database.write() as connection:
        for table in (waiting, outcomes, feedback):
            connection.execute(delete(table).where(table.c.decision_id == idle.id))
        connection.execute(delete(decisions).where(decisions.c.id == idle.id))
    verdict = world.router.verify()
    assert (verdict.decisions, verdict.skipped_decisions, verdict.updates) == (25, 0, 5)
    assert any("26 of that time have become 25" in note for note in verdict.notes)


def test_a_changed_checkpoint_is_seen(make_world):
    """A checkpoint whose sha256 the replay does not give is a mismatch of the ledger."""
    world = world_of(make_world)
    with world.database.write() as connection:
        connection.exec_driver_sql("UPDATE checkpoints SET sha256 = 'f' WHERE last_seq = 10")
    verdict = world.router.verify()
    assert not verdict.ok
    assert any("does not give the checkpoint main-10-" in note for note in verdict.notes)


def test_the_checkpoint_that_was_passed_is_kept_track_of(make_world):
    """What is noted is the newest checkpoint that the replay has given, with the number of decisions of that time."""
    world = world_of(make_world)
    world.router.verify()
    newest, older = CheckpointRows(world.database, label=world.ledger.label).newest()
    assert (newest.verified_at is not None, newest.decisions, older.verified_at) == (True, 25, None)
