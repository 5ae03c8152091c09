"""The archive: decisions that are done with move into sealed segments, and are read with the store as one."""

import hashlib
import json
from pathlib import Path

import pytest
from ragbandit.router.storage.ledgers.chain import Chain
from sqlalchemy import func, select, update

from ragbandit.router.retention import archiving
from ragbandit.router.retention.archiving import archivable, archive, change_segment
from ragbandit.router.storage.archive.reading import archived_decisions, broken_seals, segments
from ragbandit.router.storage.archive.segments import ARCHIVED, read_segment, seal_of, sealed_columns, write_segment
from ragbandit.router.storage.sql.tables import archive_segments, decisions, feedback, updates
from ragbandit.shared.errors import NotFound, StoreError
from ragbandit.shared.files.folders import Folder
from tests.conftest import on_sqlite

pytest.importorskip("pyarrow")

#: after all that the tests decide
LATER = 2e9


@pytest.fixture
def world(make_world, database_url):
    """A world on both databases, with twelve learned decisions."""
    made = make_world(database_url=database_url)
    made.judged(12)
    made.learn()
    return made


def count(world, table) -> int:
    with world.database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def learned(world) -> list[tuple]:
    return [(u.seq, u.decision_id, u.reward.value, u.features.tobytes()) for u in world.ledger.read(after=0)]


def move(world, root: Path, **options):
    return archive(world.database, root=str(root), before=LATER, now=world.now, **options)


def test_the_ledger_reads_segments_and_store_as_one(world, tmp_path):
    """After the move the ledger gives the same rows in the same order, and a new learner learns the same policy.

    `after` and `upto` cut both alike, and the sha256 chain over both is the one that was kept while learning.
    """
    before, policy, chain = learned(world), world.learner().policy.state(), Chain(world.database, label="main").end()
    moved = move(world, tmp_path / "archive", size=5)
    assert (moved.segments, moved.decisions, moved.kept) == (3, 11, 0)
    assert count(world, decisions) == count(world, updates) == 1
    assert learned(world) == before
    for after, upto in ((0, 3), (2, 9), (6, 12), (11, 12), (12, 12)):
        rows = world.ledger.read(after=after, upto=upto)
        assert [u.seq for u in rows] == [seq for seq, *_ in before if after < seq <= upto]
    assert Chain(world.database, label="main").at(chain[0]) == chain[1]
    world.files.prune([info.version for info in world.ledger.latest_snapshots(limit=99)])
    again = world.learner().policy.state()
    assert again[1] == policy[1]
    assert all((again[0][name] == policy[0][name]).all() for name in policy[0])


@on_sqlite
def test_learning_goes_on_after_the_end_of_the_archive(world, tmp_path):
    """The last update stays in the store: the next one follows it without a gap. What is archived is judged no more."""
    first = next(iter(world.ledger.read(after=0))).decision_id
    move(world, tmp_path / "archive")
    with pytest.raises(NotFound):
        world.router.feedback(first, reward=1.0)
    world.judged(2)
    assert world.learn() == 2
    assert [seq for seq, *_ in learned(world)] == list(range(1, 15))


def test_what_waits_stays(world, tmp_path):
    """A decision that nobody has judged is not archived, nor one made after the given time."""
    waiting = world.route()
    assert archivable(world.database, before=LATER) == 11
    assert archivable(world.database, before=0.0) == 0
    move(world, tmp_path / "archive")
    assert world.store.record(waiting.id).state == "waiting"


def test_a_decision_that_another_ledger_still_waits_for_stays(world, make_world):
    """All ledgers must be done with it."""
    make_world(database_url=world.settings.database, policy={"label": "second", "name": "linucb"})
    assert archivable(world.database, before=LATER) == 0


@on_sqlite
def test_a_changed_file_is_refused(world, tmp_path):
    """The sha256 of the manifest stands in SQL, those of the files in the manifest."""
    move(world, tmp_path / "archive")
    (file,) = (tmp_path / "archive" / "segment-000001").glob("updates-*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(StoreError, match=r"updates-.*parquet in .* was changed"):
        learned(world)
    (manifest,) = (tmp_path / "archive" / "segment-000001").glob("manifest-*.json")
    forged = json.loads(manifest.read_text())
    forged["files"]["updates"]["sha256"] = hashlib.sha256(data).hexdigest()
    manifest.write_text(json.dumps(forged))
    with pytest.raises(StoreError, match="its manifest is another"):
        learned(world)


@on_sqlite
def test_the_seal_covers_what_erasure_leaves_and_the_segment_before(world, tmp_path):
    """A blank text keeps the seal; another reward or another earlier segment breaks it."""
    move(world, tmp_path / "archive", size=6)
    with world.database.read() as connection:
        first, second = segments(connection)
    tables = read_segment(second)
    assert seal_of(tables, columns=sealed_columns(second), before=first.seal) == second.seal
    assert seal_of(tables, columns=sealed_columns(second), before="") != second.seal
    tables["decisions"][0] |= {"text": "", "features": None}
    assert seal_of(tables, columns=sealed_columns(second), before=first.seal) == second.seal
    tables["updates"][0] |= {"value": 0.123}
    assert seal_of(tables, columns=sealed_columns(second), before=first.seal) != second.seal


@pytest.mark.parametrize("died_at", ["files", "seal", "rows"])
def test_a_move_that_was_cut_off_is_taken_up(world, tmp_path, monkeypatch, died_at):
    """Killed after the files, after the seal, or between two batches: everything is there all the time, once."""
    before = learned(world)
    monkeypatch.setattr(archiving, "_BATCH", 4)
    names = {"files": "insert", "seal": "_empty", "rows": "delete"}
    calls = []
    real = getattr(archiving, names[died_at])

    def dies(*given, **options):
        calls.append(given)
        if died_at != "rows" or len(calls) > len(ARCHIVED):
            raise KeyboardInterrupt
        return real(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(archiving, names[died_at], dies)
        with pytest.raises(KeyboardInterrupt):
            move(world, tmp_path / "archive")
    assert learned(world) == before
    move(world, tmp_path / "archive")
    assert learned(world) == before
    assert count(world, decisions) == 1
    with world.database.read() as connection:
        assert [segment.number for segment in segments(connection)] == [1]


def test_rows_that_came_after_the_seal_keep_their_decision_in_the_store(world, tmp_path, monkeypatch):
    """Late feedback between the seal and the move is not lost: its decision stays, with all of its rows."""
    before, late = learned(world), next(iter(world.ledger.read(after=0))).decision_id
    real = archiving._empty

    def judged_meanwhile(*given, **options):
        world.router.feedback(late, reward=0.5)
        return real(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(archiving, "_empty", judged_meanwhile)
        moved = move(world, tmp_path / "archive")
    assert (moved.decisions, moved.kept) == (10, 1)
    assert len(world.store.record(late).feedback) == 2
    assert learned(world) == before
    assert late not in {row["id"] for _, rows in archived_decisions(world.database) for row in rows}
    again = move(world, tmp_path / "archive")
    assert (again.decisions, count(world, feedback)) == (1, 1)
    assert learned(world) == before


def test_rows_that_move_while_the_ledger_is_read_are_found(world, tmp_path):
    """A reader that began before the move sees no gap."""
    before = learned(world)
    reading = world.ledger.read(after=0)
    first = [next(reading) for _ in range(2)]
    rows = world.ledger.read_with_decisions(after=0, page=2)
    seen = [next(rows)[0].seq]
    move(world, tmp_path / "archive", size=5)
    assert seen + [update.seq for update, _ in rows] == [seq for seq, *_ in before]
    assert [u.seq for u in first] + [u.seq for u in reading] == [seq for seq, *_ in before]


@on_sqlite
def test_a_url_of_fsspec_is_an_archive(world, tmp_path):
    """Any store that fsspec knows holds segments."""
    before = learned(world)
    moved = archive(world.database, root=f"memory:/{tmp_path}", before=LATER, now=world.now)
    assert moved.decisions == 11
    assert len(Folder(f"memory:/{tmp_path}").names("segment-000001")) == len(ARCHIVED) + 1
    assert learned(world) == before


@on_sqlite
def test_seals_are_checked(world, tmp_path):
    """Whole segments have nothing to say; one that somebody has written anew, and one that is gone, are named."""
    move(world, tmp_path / "archive", size=4)
    assert list(broken_seals(world.database)) == []
    with world.database.read() as connection:
        first, second, third = segments(connection)
    tables = read_segment(second)
    tables["updates"][0] |= {"value": 0.123}
    forged = write_segment(second.root, tables, number=2, seal_before=first.seal)
    with world.database.write() as connection:
        here = archive_segments.c.number == 2
        connection.execute(update(archive_segments).where(here).values(manifest_sha256=forged.manifest_sha256))
    next((tmp_path / "archive" / third.name).glob("feedback-*")).unlink()
    changed, gone = broken_seals(world.database)
    assert "segment-000002" in changed
    assert "does not give its seal" in changed
    assert "segment-000003 cannot be read" in gone


def test_texts_of_a_segment_can_be_blanked(world, tmp_path):
    """The texts are in no file any more, the seal is as before, and no other column can be changed this way."""
    move(world, tmp_path / "archive")
    with world.database.read() as connection:
        (segment,) = segments(connection)
    tables = read_segment(segment)
    blank = [row | {"text": "", "features": None} for row in tables["decisions"]]
    changed = change_segment(world.database, segment, tables | {"decisions": blank})
    assert changed.seal == segment.seal
    assert list(broken_seals(world.database)) == []
    assert {row["text"] for row in read_segment(changed)["decisions"]} == {""}
    files = list((tmp_path / "archive" / "segment-000001").iterdir())
    assert len(files) == len(ARCHIVED) + 1
    with pytest.raises(StoreError, match="its seal would not fit"):
        change_segment(
            world.database, changed, tables | {"updates": [row | {"value": 9.0} for row in tables["updates"]]}
        )
