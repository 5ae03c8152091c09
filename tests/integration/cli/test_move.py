"""`ragbandit migrate --from`: a whole store moves from SQLite to PostgreSQL, also if it is killed on the way."""

import shutil
import signal
import subprocess
import sys
from contextlib import closing

import pytest
import yaml
from sqlalchemy import BigInteger, Boolean, Double, Integer, LargeBinary, insert, inspect, select, text

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.requirements import lock_store
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease, lease_holder
from ragbandit.router.storage.sql.schema import check_schema, schema_version
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION, decisions, metadata
from tests.support.audits import assert_compared, verified
from tests.support.command import run
from tests.support.logs.log_rows import plain_rows
from tests.support.moved import move, rows_of

#: a move in batches of two rows that kills its process after the seventh batch
KILLED = """
import os, sys
from ragbandit.router.storage.sql import move
from ragbandit.router.storage.sql.database import Database
move.ROWS, batches = 2, iter(range(7))
stop = lambda *_: next(batches, None) is None and os.kill(os.getpid(), 9)
move.move(Database(sys.argv[1], read_only=True), Database(sys.argv[2]), progress=stop)
"""


@pytest.fixture
def target(empty_postgres_url):
    return empty_postgres_url


@pytest.fixture
def source(sqlite_template, tmp_path, monkeypatch):
    """The URL of a store with three rows of every kind in each table; the working folder has its configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing, dimension: 8}\n")
    url = f"sqlite:///{shutil.copyfile(sqlite_template, tmp_path / 'made.db')}"
    with closing(Database(url)) as database:
        with database.write() as connection:
            for table in metadata.sorted_tables:
                rows = [{c.name: value(c, number) for c in table.columns} for number in (1, 2, 3)]
                connection.execute(insert(table), rows)
        for end in ("", "-wal"):  # the files that a killed service leaves: the rows are in the second one
            shutil.copyfile(tmp_path / f"made.db{end}", tmp_path / f"old.db{end}")
    return f"sqlite:///{tmp_path / 'old.db'}"


def value(column, number):
    if column.nullable and number == 3:
        return None
    if isinstance(column.type, Boolean):
        return number == 1
    if isinstance(column.type, Integer | BigInteger):
        return number
    if isinstance(column.type, Double):
        return (0.1 + 0.2, -1e300, -0.0)[number - 1]
    if isinstance(column.type, LargeBinary):
        return bytes(range(256))
    is_key = column.primary_key or column.name.endswith("_id")
    return f"{number}" if is_key else f'{number} "\\u0000"\t\\N é\n😀'[: column.type.length]


def test_a_killed_move_continues(source, target, monkeypatch):
    """After kill -9 the target refuses to serve; the same command continues, and every table is equal, row by row.

    Repeated after its end, it succeeds again; once the new store was used, it is refused without advice to empty it.
    """
    before = rows_of("sqlite:///made.db")
    done = subprocess.run([sys.executable, "-c", KILLED, source, target], check=False)
    assert done.returncode == -signal.SIGKILL
    part = sum(rows.total() for rows in rows_of(target).values())
    assert 7 <= part < sum(rows.total() for rows in before.values())
    monkeypatch.setenv("DATABASE_URL", target)
    for verb in (["status"], ["migrate"], ["keys", "list"]):
        assert "a move from SQLite has not ended" in run(*verb, code=2).output
    assert "`ragbandit verify --deep`, then `ragbandit up`" in run("migrate", "--from", "old.db", code=0).output
    assert rows_of(target) == before == rows_of(source)
    with closing(Database(target)) as database, database.read() as connection:
        assert check_schema(database) == SCHEMA_REVISION
        assert not [column for table in metadata.tables for column in inspect(connection).get_columns(table)
                    if column["autoincrement"] or column.get("identity")]  # fmt: skip
    assert "`ragbandit verify --deep`, then `ragbandit up`" in run("migrate", "--from", source, code=0).output
    assert rows_of(target) == before
    with closing(Database(target)) as database, database.write() as connection:
        connection.execute(text("UPDATE counters SET value = value + 1"))  # as the service does
    refused = run("migrate", "--from", source, code=2).output
    assert "CONFLICT database_url: DATABASE_URL has rows of another store" in refused
    assert "the move is complete: use it" in " ".join(refused.split())
    assert "DROP SCHEMA" not in refused


def test_a_source_that_changed_is_not_mixed(source, target, monkeypatch):
    """If the SQLite store changed after a move began, the next one is refused instead of mixing two states."""
    subprocess.run([sys.executable, "-c", KILLED, source, target], check=False)
    with closing(Database(source)) as database, database.write() as connection:
        connection.execute(text("UPDATE counters SET value = value + 1"))
    monkeypatch.setenv("DATABASE_URL", target)
    assert "of this store before it changed" in run("migrate", "--from", source, code=2).output


def test_texts_that_postgresql_refuses(source, target, monkeypatch, tmp_path):
    """NUL and invalid UTF-8 become U+FFFD; a value that does not fit is refused with its table, row and column. The
    folder of a store names it, too.
    """
    with closing(Database(source)) as database, database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE decisions SET text = 'a' || char(0) || 'b', fault = CAST(x'41EDA080' AS TEXT)"
        )
        connection.exec_driver_sql("UPDATE decisions SET arm = ? WHERE id = '2'", ("x" * 65,))
    monkeypatch.setenv("DATABASE_URL", target)
    refused = run("migrate", "--from", source, code=2).output
    assert "table decisions after row 0, line 2, column arm" in refused
    with closing(Database(source)) as database, database.write() as connection:
        connection.exec_driver_sql("UPDATE decisions SET arm = 'x'")
    (tmp_path / "store").mkdir()
    (tmp_path / "old.db").rename(tmp_path / "store" / "ragbandit.db")
    run("migrate", "--from", "store", code=0)
    with closing(Database(target)) as database, database.read() as connection:
        texts = connection.execute(select(decisions.c.text, decisions.c.fault)).all()
    assert set(texts) == {("a\ufffdb", "A\ufffd\ufffd\ufffd")}


def test_what_is_refused(source, target, monkeypatch, tmp_path):
    """Other engines, a missing file, an older schema and a store in use are refused with a remedy."""
    assert "set DATABASE_URL=postgresql" in run("migrate", "--from", source, code=2).output
    monkeypatch.setenv("DATABASE_URL", target)
    assert "pg_dump" in run("migrate", "--from", target, code=2).output
    assert "there is no store at none.db" in run("migrate", "--from", "none.db", code=2).output
    assert f"there is no store at {tmp_path / 'ragbandit.db'}" in run("migrate", "--from", ".", code=2).output
    assert "leave out --pre" in run("migrate", "--from", source, "--pre", code=2).output
    with lock_store(Settings(database_url=source), at="http://127.0.0.1:8000"):
        assert "`ragbandit serve` runs on this folder" in run("migrate", "--from", source, code=2).output
    empty = Database(f"sqlite:///{tmp_path / 'empty.db'}")
    refused = run("migrate", "--from", empty.url, code=2).output
    assert f"has schema none, and this release moves schema {SCHEMA_REVISION}" in refused
    with closing(empty), closing(Database(source)) as database:
        Lease(database=database, name="learn:main").acquire(holder=lease_holder("learn"), lease_s=60)
    assert "holds the lease 'learn:main'" in run("migrate", "--from", source, code=2).output
    with closing(Database(target)) as database, database.read() as connection:
        assert schema_version(connection) == (None, None)


def test_the_next_decision_is_warm(make_world, settings, target, monkeypatch, tmp_path, other_processor):
    """A store with erased, excluded, imported and unrated rows verifies as before, also on another processor, and its
    learned policy decides.
    """
    world = make_world(tenants={"acme": {}}, policy={"name": "mba"})
    world.feedback(world.route(ours=True, tenant="acme"), rating=1.0, rater="bob")
    erased, *_ = world.judged(6)
    assert world.learn() >= 6
    world.route()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(world.settings.model_dump(mode="json", exclude_defaults=True)))
    source, more = str(world.database.url), ("--config", config)
    world.close()
    run("keys", "create", "--name", "one", "--role", "app", *more, code=0)
    assert "decisions that the ledger has not learned" in run("data", "export", tmp_path / "a.jsonl", *more).output
    write_rows(tmp_path / "log.jsonl", plain_rows(3))
    imported = run("data", "import", tmp_path / "log.jsonl", *more, code=0).output
    assert "the ledger 'main' of the service does not learn these rows" in imported
    run("data", "erase", "--decision", erased.id, "--yes", *more, code=0)
    run("feedback", "exclude", "--source", "rater:bob", "--reason", "a test", *more, code=0)
    run("feedback", "quarantine", "--rater", "bob", "--reason", "a test", "--yes", *more)
    with Router.open(world.settings, jobs=MemoryJobs()) as router:
        version = router.service.serving.version
    assert move(source, target, monkeypatch, config=str(config)) > 30
    with Router.open(settings(database_url=target), jobs=MemoryJobs()) as router:
        decision = router.route("one more?")
        assert (decision.version, decision.facts.get("rebuilding")) == (version, None)
        assert router.verify(deep=True).ok
    assert_compared(other_processor.call(verified, settings(database_url=target)))
