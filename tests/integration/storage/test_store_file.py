"""The file of SQLite under a running process, where one is missing, damaged, or can only be read."""

import os
import shutil
import sqlite3

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.audit.verify import verify
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import open_database, open_ledger
from ragbandit.router.serving.setup.requirements import has_store
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.store_file import StoreFile
from ragbandit.shared.errors import ConfigError, StoreError
from tests.support import command
from tests.support.cases import every_case
from tests.support.readiness import states_of


def settings_of(folder, **more):
    arms = {"mine": {"run_by": "caller"}, "other": {"run_by": "caller"}}
    return Settings(data_dir=str(folder), encoder={"model": "hashing"}, arms=arms, **more)


def copied(data):
    shutil.copytree(data, data.with_name("copy"))
    data.rename(data.with_name("old"))
    data.with_name("copy").rename(data)


def linked(data):
    """A link to a copy of the folder, at the folder's path."""
    data.rename(data.with_name("old"))
    shutil.copytree(data.with_name("old"), data.with_name("target"))
    data.symlink_to(data.with_name("target"))


#: what may happen to a folder while a process has its database open
CHANGES = {
    "swapped for a copy": copied,
    "moved away": lambda data: data.rename(data.with_name("elsewhere")),
    "removed": shutil.rmtree,
    "a link to a copy": linked,
    "only the file": lambda data: (data / "ragbandit.db").unlink(),
    "a file in its place": lambda data: (data.rename(data.with_name("old")), data.touch()),
}


def test_a_router_writes_nothing_into_a_file_that_no_path_names(tmp_path):
    """Whatever happened to the folder, the next question is refused, /ready says why, and no database is made there."""
    with every_case() as each:
        for number, (name, change) in enumerate(CHANGES.items()):
            with each(name):
                data = tmp_path / str(number) / "data"
                with Router.open(settings_of(data)) as router:
                    first = router.route("where?")
                    change(data)
                    inode = os.stat(data / "ragbandit.db").st_ino if (data / "ragbandit.db").exists() else None
                    with pytest.raises(StoreError, match=r"is another file|is not there any more") as caught:
                        router.route("and now?")
                    assert caught.value.lasting
                    state = states_of(router.process.readiness)["database"]
                    assert "another file" in state or "not there any more" in state
                    assert inode == (os.stat(data / "ragbandit.db").st_ino if inode else None)
                    assert (data / "ragbandit.db").exists() is (inode is not None)
                    assert first.arm in ("mine", "other")


def test_a_folder_that_comes_back_is_written_again(tmp_path):
    """A library goes on once the path names its file again, with every decision that it has acknowledged."""
    data = tmp_path / "data"
    with Router.open(settings_of(data)) as router:
        first = router.route("before?").id
        data.rename(tmp_path / "away")
        with pytest.raises(StoreError):
            router.route("meanwhile?")
        (tmp_path / "away").rename(data)
        second = router.route("after?").id
    rows = sqlite3.connect(data / "ragbandit.db").execute("SELECT id FROM decisions")
    assert {row[0] for row in rows} == {first, second}


def test_a_store_is_not_begun_beside_what_a_former_one_left(tmp_path):
    """A database that is gone, of 0 bytes or without a table is refused by name, unless a new store is asked for."""
    settings = settings_of(tmp_path)
    file = tmp_path / "ragbandit.db"

    def without_tables():
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA user_version=3")
        connection.close()

    (tmp_path / "indexes" / "default").mkdir(parents=True)
    (tmp_path / "snapshots").mkdir()
    open_database(settings).close()  # an index may be built before, and an empty folder is no store's
    with every_case() as each:
        for left in ("snapshots/main-3-0123456789ab.json", "accepted.yaml", "service.lock", "ragbandit.db-wal"):
            for name, make in {"gone": lambda: None, "empty": file.touch, "no table": without_tables}.items():
                if (left, name) == ("ragbandit.db-wal", "no table"):
                    continue  # it belongs to that file
                with each(f"{left}, {name}"):
                    for old in tmp_path.glob("ragbandit.db*"):
                        old.unlink()
                    make()
                    (tmp_path / left).write_text("x")
                    with pytest.raises(StoreError, match=left.rpartition("/")[0] or left) as caught:
                        open_database(settings)
                    assert "migrate --new-store" in (caught.value.remedy or "")
                    assert file.exists() is (name != "gone")
                    (tmp_path / left).unlink(missing_ok=True)
    (tmp_path / "accepted.yaml").write_text("x")
    open_database(settings, new_store=True).close()
    open_database(settings).close()


def test_what_only_works_on_a_store_makes_none(tmp_path, monkeypatch):
    """`serve`, workers and verbs that look end with the command that makes a database; `migrate` makes it."""
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing}\ndata_dir: data\narms: {a: {run_by: caller}}\n")
    monkeypatch.chdir(tmp_path)
    for verb in (["serve"], ["worker", "--queue", "learn"], ["keys", "list"], ["migrate", "--wait", "0"]):
        assert command.run(*verb, code=2).stderr.count("Traceback") == 0
        assert not (tmp_path / "data" / "ragbandit.db").exists()
    assert "`ragbandit migrate`" in command.run("serve").stderr
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "up.lock").write_text("process 7")
    assert "up.lock" in command.run("validate", code=1).output
    assert "up.lock" in command.run("migrate", code=2).stderr
    command.run("migrate", "--new-store", code=0)
    command.run("keys", "list", code=0)


def garbled(file, table):
    """Fill the root page of a table with random bytes."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name=?", (table,)).fetchone()[0]
    connection.close()
    with file.open("r+b") as opened:
        opened.seek((page - 1) * size)
        opened.write(bytes(range(1, 256)) * (size // 255))


def test_damage_is_named_with_a_backup_as_the_remedy(tmp_path):
    """`verify` names the damaged page reported by SQLite; for a file that is not a database the remedy is a backup."""
    settings = settings_of(tmp_path)
    with Router.open(settings) as router:
        router.route("where?")
    garbled(tmp_path / "ragbandit.db", "outcomes")
    with open_ledger(settings, label="main") as ledger:
        verdict = verify(ledger, files=SnapshotFiles(settings.snapshot_root), serving=None)
        with pytest.raises(StoreError, match="malformed") as caught, ledger.database.read() as connection:
            connection.exec_driver_sql("SELECT * FROM outcomes").all()
    assert (verdict.ok, verdict.damages > 0) == (False, True)
    assert "restore a backup" in verdict.notes[-1]
    assert "restore a backup" in str(caught.value)
    (tmp_path / "ragbandit.db").write_bytes(b"no database at all" * 500)
    with pytest.raises(StoreError, match="not a database") as caught:
        open_database(settings)
    assert "restore a backup" in str(caught.value)
    assert caught.value.lasting


def test_what_can_only_be_read_is_read(tmp_path, monkeypatch, caplog):
    """Without the right to write, a ledger is read as it is, with -wal and -shm and without, and nothing is written."""
    settings = settings_of(tmp_path / "data")
    writer = open_database(settings)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))
    with pytest.raises(ConfigError, match="data_dir"):
        open_database(settings)
    with open_ledger(settings, label="main") as ledger:
        assert ledger.last_seq() == 0
        with pytest.raises(StoreError, match="cannot be written"), ledger.database.write():
            pass
    writer.close()
    shutil.copytree(tmp_path / "data", tmp_path / "mount")
    file = StoreFile(tmp_path / "mount" / "ragbandit.db", read_only=True)
    (tmp_path / "mount" / "ragbandit.db-wal").write_bytes(b"x" * 40)
    monkeypatch.setattr(StoreFile, "_open", unable_without_immutable(StoreFile._open))
    connection = file.connect({})
    assert connection.execute("SELECT count(*) FROM decisions").fetchone() == (0,)
    connection.close()
    assert "ragbandit.db-wal" in caplog.text


def unable_without_immutable(opened):
    """As on a disk on which SQLite cannot make the -shm file that it needs."""

    class Unable:
        def execute(self, _statement):
            raise sqlite3.OperationalError("unable to open database file")

        def close(self):
            pass

    return lambda self, how, parameters: opened(self, how, parameters) if "immutable" in how else Unable()


def test_a_connection_makes_no_file(tmp_path):
    """A Database with create=False reports a missing file when it is used; a replaced file opens no connection."""
    database = Database(f"sqlite:///{tmp_path}/x.db", make=False)
    with pytest.raises(StoreError, match="unable to open"), database.read():
        pass
    assert not list(tmp_path.iterdir())
    assert not has_store(Settings(database_url=f"sqlite:///{tmp_path}/x.db"))
    made = Database(f"sqlite:///{tmp_path}/x.db")
    with made.read():
        pass
    (tmp_path / "x.db").rename(tmp_path / "y.db")
    sqlite3.connect(tmp_path / "x.db").close()
    made.close()
    with pytest.raises(StoreError, match="another file"), made.read():
        pass
    assert Ledger(made, label="main").database is made
    made.close()
