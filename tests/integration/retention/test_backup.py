"""A backup is one state of a store in use, and becomes a store again in an empty place, of either database."""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from ragbandit.router.config.settings import Settings
from ragbandit.router.retention import restoring, taking
from ragbandit.router.retention.manifest import DATABASE_FILE, MANIFEST_FILE, read_manifest
from ragbandit.router.retention.places import Place, no_progress
from ragbandit.router.retention.restoring import check_backup, restore_backup
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.sql.counters import counted, kept
from ragbandit.router.storage.sql.database import Database, revision_of
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION, decisions, leases, updates
from ragbandit.shared.errors import ConfigError, Conflict, InvalidInput, NotFound, StoreError
from ragbandit.workers.cli import app
from tests.conftest import World, made_settings
from tests.integration.retention import writer
from tests.support.next_release import NEXT, become_next_release

__all__ = ["become_next_release"]

ROOT = Path(__file__).parents[3]


def take(settings, to, **more):
    """A backup of the store of these settings."""
    database = Database(settings.database)
    given = {"config": [], "version": "0.0.0", "now": time.time(), "with_indexes": True, "progress": no_progress}
    try:
        return taking.take_backup(settings, database=database, to=str(to), **given | more)
    finally:
        database.close()


def put(source, settings):
    """A checked backup, restored."""
    manifest = check_backup(str(source), progress=no_progress)
    restore_backup(
        str(source), settings=settings, manifest=manifest, actor="cli:me@here", now=2e9, progress=no_progress
    )
    return manifest


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs a verb with the environment of a store, as JSON."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGBANDIT_ENCODER__MODEL", "hashing")
    monkeypatch.setenv("RAGBANDIT_ENCODER__DIMENSION", "8")

    def run(*arguments, data_dir, database_url=None):
        monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(data_dir))
        if database_url:
            monkeypatch.setenv("DATABASE_URL", database_url)
        else:
            monkeypatch.delenv("DATABASE_URL", raising=False)
        return CliRunner().invoke(app, [*arguments, "--json"])

    return run


@pytest.fixture(scope="module")
def filled(tmp_path_factory, sqlite_template):
    """The folder of a store of SQLite with learned decisions."""
    folder = tmp_path_factory.mktemp("filled") / "data"
    given = {"data_dir": str(folder), "learning": {"checkpoint_every": 10}}
    with closing(World(made_settings(given, template=sqlite_template))) as world:
        world.judged(25)
        world.learn()
        world.route()
    return folder


@pytest.fixture
def learned(filled, settings, tmp_path):
    """A store of SQLite with learned decisions, closed; its settings."""
    shutil.copytree(filled, tmp_path / "data")
    return settings(learning={"checkpoint_every": 10})


def test_taken_under_writes_and_restored(command, settings, database_url, tmp_path):
    """A backup that is taken while another process writes is one state: restored, it verifies deeply and balances."""
    of_writer = settings(database_url=database_url, data_dir=str(tmp_path / "live"))
    arguments = [sys.executable, writer.__file__, of_writer.model_dump_json()]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        taken = command("data", "backup", "copy", data_dir=tmp_path / "live", database_url=database_url)
        process.stdin.close()
        assert process.wait(30) == 0
    assert taken.exit_code == 0, taken.stderr

    done = command("data", "restore", "copy", "--to", "again", "--deep", data_dir=tmp_path / "live")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"], told["taken_of"]) == (0, True, database_url.partition(":")[0].partition("+")[0])
    assert told["verify main"]["counter_mismatches"] == 0
    assert 30 <= told["decisions"] == json.loads(taken.stdout)["decisions"]
    status = command("status", data_dir=tmp_path / "again")
    assert json.loads(status.stdout)["counters"]["decided"] == told["decisions"]
    assert {"ragbandit.db", "snapshots"} <= {each.name for each in (tmp_path / "again").iterdir()}


def test_sqlite_becomes_postgresql(learned, postgres, settings, command, tmp_path):
    """A backup of SQLite fills an empty PostgreSQL database, where learning goes on."""
    take(learned, tmp_path / "copy")
    url = postgres.url(postgres.new_database())
    done = command("data", "restore", "copy", "--to", "again", "--deep", data_dir=tmp_path, database_url=url)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["decisions"], told["verify main"]["updates"]) == (True, 26, 25)
    database = Database(url)
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(leases)).scalar_one() == 0
    database.close()


def test_learning_goes_on_after_a_restore(learned, make_world, settings, tmp_path):
    """What is restored decides and learns on, with the numbers that follow."""
    take(learned, tmp_path / "copy")
    place = settings(data_dir=str(tmp_path / "again"))
    Path(place.data_dir, "ragbandit.db").unlink()
    put(tmp_path / "copy", place)
    world = make_world(data_dir=str(tmp_path / "again"))
    world.judged(3)
    assert world.learn() == 3
    assert world.updates()[-1]["seq"] == 28


def test_the_archive_comes_along(learned, make_world, command, settings, tmp_path):
    """Segments of the archive are in the backup, and are read in their new place."""
    pytest.importorskip("pyarrow")
    assert command("data", "archive", "--before", "2030-01-01", data_dir=learned.data_dir).exit_code == 0
    manifest = take(learned, tmp_path / "copy")
    assert len(manifest.below("archive")) == 7
    done = command("data", "restore", "copy", "--to", "again", data_dir=learned.data_dir)
    assert json.loads(done.stdout)["ok"], done.stdout
    assert (tmp_path / "again" / "archive" / "segment-000001").is_dir()


def test_damage_is_named_and_nothing_restored(learned, settings, tmp_path):
    """A changed byte, a cut-off file and a missing one are all named; the place stays empty."""
    manifest = take(learned, tmp_path / "copy")
    changed, cut, lost = [file.name for file in manifest.files if file.name.startswith("snapshots/")][:3]
    data = bytearray((tmp_path / "copy" / changed).read_bytes())
    data[-1] ^= 1
    (tmp_path / "copy" / changed).write_bytes(data)
    (tmp_path / "copy" / cut).write_bytes((tmp_path / "copy" / cut).read_bytes()[:-5])
    (tmp_path / "copy" / lost).unlink()
    place = settings(data_dir=str(tmp_path / "again"))
    Path(place.data_dir, "ragbandit.db").unlink()
    with pytest.raises(StoreError) as failure:
        put(tmp_path / "copy", place)
    assert all(name in str(failure.value) for name in (changed, cut, f"{lost} (missing)"))
    assert list(Path(place.data_dir).iterdir()) == []


def test_a_changed_manifest_is_refused(learned, tmp_path):
    """A manifest that was edited does not carry its own sha256."""
    take(learned, tmp_path / "copy")
    file = tmp_path / "copy" / MANIFEST_FILE
    file.write_text(file.read_text().replace('"version": "0.0.0"', '"version": "0.0.1"'))
    with pytest.raises(StoreError, match=MANIFEST_FILE):
        check_backup(str(tmp_path / "copy"), progress=no_progress)


def test_an_interrupted_backup_is_none(learned, monkeypatch, tmp_path):
    """A backup that breaks off leaves no folder of its name, and what is half of one is refused."""

    def break_off(*_arguments, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr(taking, "_copy_named", break_off)
    with pytest.raises(KeyboardInterrupt):
        take(learned, tmp_path / "copies" / "copy")
    assert list((tmp_path / "copies").iterdir()) == []
    half = tmp_path / "half"
    half.mkdir()
    (half / DATABASE_FILE).write_bytes(b"SQLite format 3")
    with pytest.raises(NotFound, match="written last"):
        check_backup(str(half), progress=no_progress)


@pytest.mark.parametrize("there", ["ragbandit.db", "snapshots/main-1-x.json", "indexes/default/meta.json"])
def test_a_place_that_is_not_empty_is_refused(learned, settings, there, tmp_path):
    """A database, a snapshot or an index in the place stops the restore before anything is written."""
    take(learned, tmp_path / "copy")
    place = settings(data_dir=str(tmp_path / "again"))
    Path(place.data_dir, "ragbandit.db").unlink()
    file = Path(place.data_dir, there)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(Conflict, match="empty place"):
        put(tmp_path / "copy", place)
    assert [each for each in Path(place.data_dir).rglob("*") if each.is_file()] == [file]


def test_a_database_with_tables_is_refused(learned, settings, postgres_url, tmp_path):
    """A PostgreSQL database that has our tables is not written to."""
    take(learned, tmp_path / "copy")
    with pytest.raises(Conflict, match="tables"):
        put(tmp_path / "copy", settings(database_url=postgres_url, data_dir=str(tmp_path / "again")))


def test_a_failed_restore_leaves_nothing(learned, settings, monkeypatch, tmp_path):
    """A restore that breaks off at the database takes the files away that it has put there."""
    from ragbandit.router.retention import restoring

    take(learned, tmp_path / "copy")
    place = settings(data_dir=str(tmp_path / "again"))
    Path(place.data_dir, "ragbandit.db").unlink()
    monkeypatch.setattr(restoring, "migrate", lambda _database: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        put(tmp_path / "copy", place)
    assert [each for each in Path(place.data_dir).rglob("*") if each.is_file()] == []


def test_backups_under_a_url(learned, settings, tmp_path):
    """A backup goes to an fsspec URL and comes back from it; a second one there is refused."""
    url = f"memory://backups/{tmp_path.name}"
    manifest = take(learned, url)
    assert {file.name for file in manifest.files} | {MANIFEST_FILE} == set(Place(url).names())
    with pytest.raises(Conflict, match="not empty"):
        take(learned, url)
    place = settings(data_dir=str(tmp_path / "again"))
    Path(place.data_dir, "ragbandit.db").unlink()
    assert put(url, place).rows["decisions"] == 26
    assert Path(place.data_dir, "ragbandit.db").stat().st_mode & 0o777 == 0o600


def test_a_url_of_this_machine_is_a_folder(learned, tmp_path):
    """Under file:// a backup is a folder that gets its name when it is whole, as under a path."""
    take(learned, f"file://{tmp_path}/copies/copy")
    assert [each.name for each in (tmp_path / "copies").iterdir()] == ["copy"]
    assert (tmp_path / "copies" / "copy").stat().st_mode & 0o777 == 0o700
    check_backup(str(tmp_path / "copies" / "copy"), progress=no_progress)


def test_folders_of_the_store_may_be_links(learned, tmp_path):
    """An index and snapshots that the operator moved to another disk are in the backup."""
    folder = tmp_path / "elsewhere" / "default"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text("{}")
    Path(learned.data_dir, "indexes").mkdir()
    Path(learned.data_dir, "indexes", "default").symlink_to(folder)
    snapshot = next(Path(learned.snapshot_root).glob("*.json"))
    snapshot.rename(tmp_path / "elsewhere" / snapshot.name)
    snapshot.symlink_to(tmp_path / "elsewhere" / snapshot.name)
    names = [file.name for file in take(learned, tmp_path / "copy").files]
    assert {"indexes/default/meta.json", f"snapshots/{snapshot.name}"} <= set(names)


def test_a_place_whose_restore_has_not_ended_is_not_opened(learned, tmp_path, monkeypatch):
    """Until the database is there nothing opens the place, nor after a kill: no empty store is made over snapshots."""
    take(learned, tmp_path / "backup")
    there = Settings(data_dir=str(tmp_path / "there"))
    last, refused = restoring._put_database, []

    def put_last(*parts, **more):
        with pytest.raises(ConfigError, match="did not end") as caught:
            open_database(there)
        refused.append(caught.value.field)
        last(*parts, **more)

    monkeypatch.setattr(restoring, "_put_database", put_last)
    put(tmp_path / "backup", there)
    assert refused == ["data_dir"]
    open_database(there).close()


def test_indexes_come_along_unless_left_out(learned, tmp_path):
    """Folders of indexes are copied, half-made ones are not; --without-indexes says so in the manifest."""
    folder = Path(learned.data_dir, "indexes")
    for name in ("default/meta.json", "default/parts/a.npy", ".new-1/meta.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(name)
    whole = take(learned, tmp_path / "whole")
    assert [file.name for file in whole.below("indexes")] == [
        "indexes/default/meta.json",
        "indexes/default/parts/a.npy",
    ]
    less = take(learned, tmp_path / "less", with_indexes=False)
    assert (less.below("indexes"), len(less.left_out)) == ([], 1)


def test_the_sha256_that_backup_prints_is_the_one_expected(learned, command, tmp_path):
    """`restore --expect` takes what `backup` printed; it refuses a manifest that was made anew, and no sha256."""
    taken = json.loads(command("data", "backup", "copy", data_dir=learned.data_dir).stdout)
    assert list(taken)[-1] == "manifest_sha256"
    sha256 = taken["manifest_sha256"]
    assert sha256 == hashlib.sha256((tmp_path / "copy" / MANIFEST_FILE).read_bytes()).hexdigest()
    done = command("data", "restore", "copy", "--to", "again", "--expect", sha256, data_dir=learned.data_dir)
    assert done.exit_code == 0, done.stderr
    file = tmp_path / "copy" / MANIFEST_FILE
    forged = replace(read_manifest(Place(str(tmp_path / "copy"))), taken_at=1.0)
    file.write_bytes(forged.packed())
    for given in (sha256, "abc"):
        done = command("data", "restore", "copy", "--to", "more", "--expect", given, data_dir=learned.data_dir)
        assert (done.exit_code, "expect" in done.stderr) == (2, True)
    assert not (tmp_path / "more").exists()


def test_the_configuration_is_kept_without_secrets(learned, command, monkeypatch, tmp_path):
    """The settings in force are in config.json, each with where it came from, and no password."""
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@localhost/0")
    assert command("data", "backup", "copy", data_dir=learned.data_dir).exit_code == 0
    text = (tmp_path / "copy" / "config.json").read_text()
    assert "hunter2" not in text
    assert ["encoder.model", "hashing", "environment RAGBANDIT_ENCODER__MODEL"] in json.loads(text)
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700


def test_an_older_backup_is_migrated(learned, empty_database_url, settings, tmp_path, become_next_release):
    """A backup of an older schema is brought up to today's where it is restored, whatever the database."""
    rows = take(learned, tmp_path / "copy").rows
    become_next_release()
    put(str(tmp_path / "copy"), settings(database_url=empty_database_url, data_dir=str(tmp_path / "again")))
    database = Database(empty_database_url)
    with database.read() as connection:
        assert revision_of(connection) == NEXT
        assert connection.execute(select(func.count()).select_from(updates)).scalar_one() == rows["updates"] > 0
        assert kept(connection, label="main") == counted(connection, label="main")
    database.close()


def test_a_backup_of_before_is_refused(learned, tmp_path):
    """A backup of version 0.x, by its format, is refused with the last commit that reads it."""
    take(learned, tmp_path / "copy")
    manifest = tmp_path / "copy" / MANIFEST_FILE
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 1}))
    with pytest.raises(InvalidInput, match="the last commit that reads it is e8e4422"):
        check_backup(str(tmp_path / "copy"), progress=no_progress)


def test_a_newer_backup_is_refused(learned, monkeypatch, tmp_path):
    """A backup of a schema that this version does not know is refused with the version that took it."""
    from ragbandit.router.retention import restoring

    take(learned, tmp_path / "copy")
    monkeypatch.setattr(restoring, "SCHEMA_REVISION", "0000")
    with pytest.raises(Exception, match=r"ragbandit 0\.0\.0"):
        check_backup(str(tmp_path / "copy"), progress=no_progress)


def test_progress_is_told(learned, settings, tmp_path):
    """Backup and restore tell how far each kind of work is, up to its end, for the bars of the command."""
    told = []
    take(learned, tmp_path / "copy", progress=lambda *step: told.append(step))
    place = settings(data_dir=str(tmp_path / "again"))
    Path(place.data_dir, "ragbandit.db").unlink()
    manifest = check_backup(str(tmp_path / "copy"), progress=lambda *step: told.append(step))
    restore_backup(
        str(tmp_path / "copy"),
        settings=place,
        manifest=manifest,
        actor="cli:me@here",
        now=2e9,
        progress=lambda *step: told.append(step),
    )
    ended = {what for what, done, total in told if done == total}
    assert {"pages of the database", "snapshots", "checkpoints", "bytes checked", "migration"} <= ended


def test_the_manifest_counts_every_table(learned, tmp_path):
    """Its rows are those of the copy, its schema the one in force."""
    take(learned, tmp_path / "copy")
    manifest = read_manifest(Place(str(tmp_path / "copy")))
    database = Database(learned.database)
    with database.read() as connection:
        count = connection.execute(select(func.count()).select_from(decisions)).scalar_one()
    database.close()
    assert (manifest.revision, manifest.rows["decisions"]) == (SCHEMA_REVISION, count)
