"""A backup that somebody else wrote or changes meanwhile: nothing outside is written, and nothing of others removed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ragbandit.router.retention.database_copy import count_rows
from ragbandit.router.retention.manifest import DATABASE_FILE, MANIFEST_FILE, BackupFile, Manifest
from ragbandit.router.retention.places import Place, no_progress, sha256_of
from ragbandit.router.retention.restoring import check_backup, restore_backup
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION
from ragbandit.shared.errors import InvalidInput, StoreError


@pytest.fixture
def craft(sqlite_template, tmp_path):
    """Writes a backup of an empty store with these files more, name -> text; the folder."""

    def write(files, *, database=None):
        copy = Place(str(tmp_path / "copy"))
        copy.put(DATABASE_FILE, Path(sqlite_template).read_bytes() if database is None else database)
        for name, text in files.items():
            copy.put(name, text.encode())
        described = []
        for name in (DATABASE_FILE, *files):
            size, sha256 = sha256_of(copy, name)
            described.append(BackupFile(name=name, bytes=size, sha256=sha256))
        made = Manifest(
            taken_at=0.0,
            version="0.0.0",
            revision=SCHEMA_REVISION,
            database="sqlite",
            rows=count_rows(tmp_path / "copy" / DATABASE_FILE) if database is None else {},
            files=described,
        )
        copy.put(MANIFEST_FILE, made.packed())
        return tmp_path / "copy"

    return write


@pytest.fixture
def target(settings, tmp_path):
    """The settings of an empty data_dir."""
    empty = settings(data_dir=str(tmp_path / "again"))
    Path(empty.data_dir, "ragbandit.db").unlink()
    return empty


def put(source, target, *, progress=no_progress, manifest=None):
    checked = manifest or check_backup(str(source), progress=no_progress)
    restore_backup(str(source), settings=target, manifest=checked, actor="cli:me@here", now=2e9, progress=progress)


def files(folder):
    return sorted(each.relative_to(folder).as_posix() for each in Path(folder).rglob("*") if each.is_file())


def test_a_file_behind_a_link_is_no_part_of_a_backup(craft, target, tmp_path):
    """A link in a backup is not followed, whether it is the file or a folder above it: the file is named as damaged."""
    copy = craft({"snapshots/a/b.json": "{}", "indexes/default/meta.json": "{}"})
    (copy / "snapshots" / "a").rename(tmp_path / "elsewhere")
    (copy / "snapshots" / "a").symlink_to(tmp_path / "elsewhere")
    (copy / "indexes" / "default" / "meta.json").rename(tmp_path / "secret")
    (copy / "indexes" / "default" / "meta.json").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError) as failure:
        put(copy, target)
    assert str(failure.value).count("is a link, or lies behind one") == 2
    assert files(target.data_dir) == []


def test_a_database_that_is_a_link_is_not_read(craft, target, tmp_path):
    """Nor is the database of a backup, which a PostgreSQL database is filled from."""
    copy = craft({})
    manifest = check_backup(str(copy), progress=no_progress)
    (copy / DATABASE_FILE).rename(tmp_path / "elsewhere.db")
    (copy / DATABASE_FILE).symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(OSError, match="link"):
        put(copy, target, manifest=manifest)


def test_a_manifest_that_was_not_checked_leads_nowhere(craft, target, tmp_path):
    """Names are refused where files are written, too."""
    copy = craft({"snapshots/a.json": "{}"})
    manifest = check_backup(str(copy), progress=no_progress)
    (tmp_path / "copy" / "evil").write_text("{}")
    object.__setattr__(manifest.files[1], "name", "snapshots/../evil")
    with pytest.raises(OSError, match="no name of a file"):
        put(copy, target, manifest=manifest)
    assert files(target.data_dir) == []


def test_a_restore_that_fails_removes_what_it_created_alone(craft, target):
    """A file that was there is neither replaced nor removed, though the manifest names it; what was copied goes."""
    theirs = Path(target.data_dir, "snapshots", ".theirs")
    theirs.parent.mkdir()
    theirs.write_text("precious")
    copy = craft({"snapshots/a.json": "{}", "snapshots/.theirs": "x", "archive/a/b": "x"})
    with pytest.raises(FileExistsError):
        put(copy, target)
    assert files(target.data_dir) == ["snapshots/.theirs"]
    assert theirs.read_text() == "precious"


def test_a_database_that_is_none_leaves_nothing(craft, target):
    """The files that were copied before it are removed, and the folders."""
    with pytest.raises(StoreError, match="database"):
        put(craft({"indexes/default/meta.json": "{}"}, database=b"not SQLite" * 200), target)
    assert list(Path(target.data_dir).iterdir()) == []


def test_a_database_that_was_made_meanwhile_is_not_replaced(craft, target):
    """A service that was started in the place has its database; the restore fails and takes its files away."""

    def start(what, done, total):
        if (what, done) == ("migration", total):
            Path(target.data_dir, "ragbandit.db").write_text("theirs")

    with pytest.raises(FileExistsError):
        put(craft({"snapshots/a.json": "{}"}), target, progress=start)
    assert files(target.data_dir) == ["ragbandit.db"]
    assert Path(target.data_dir, "ragbandit.db").read_text() == "theirs"


@pytest.mark.parametrize("into", ["sqlite", "postgresql"])
def test_a_backup_that_changes_while_it_is_restored_is_refused(craft, target, settings, postgres, tmp_path, into):
    """The database that is used is the one that was compared with the manifest, not one that took its place since."""
    if into == "postgresql":
        target = settings(data_dir=target.data_dir, database_url=postgres.url(postgres.new_database()))
    copy = craft({})
    manifest = check_backup(str(copy), progress=no_progress)
    with closing(sqlite3.connect(copy / DATABASE_FILE)) as changed:
        changed.execute("CREATE TABLE more (a)")
    with pytest.raises(StoreError, match="has changed since it was checked"):
        put(copy, target, manifest=manifest)
    assert list(Path(target.data_dir).iterdir()) == []
    if into == "postgresql":
        database = Database(target.database)
        with database.read() as connection:
            assert (
                connection.exec_driver_sql("SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'").scalar() == 0
            )
        database.close()


def test_another_manifest_than_the_expected_one_is_refused_first(craft):
    """Of a backup with another manifest no other file is opened: a missing one is not even noticed."""
    copy = craft({"snapshots/a.json": "{}"})
    (copy / DATABASE_FILE).unlink()
    with pytest.raises(InvalidInput, match="not the expected one"):
        check_backup(str(copy), progress=no_progress, expect="0" * 64)
