"""Two releases on one database: which steps old code survives, and which newer schemas code accepts."""

import ast
import importlib
import json
import pkgutil
import threading
import time
from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from ragbandit.migrations import versions
from ragbandit.router.errors import StoreError
from ragbandit.router.storage.sql import database as database_module
from ragbandit.router.storage.sql import schema_window
from ragbandit.router.storage.sql.database import Database, check_schema, migrate, revision_of, wait_for_schema
from ragbandit.router.storage.sql.tables import OLDEST_REVISION, SCHEMA_REVISION, metadata
from ragbandit.workers.cli import app

from .test_migrations import set_revision

#: what a step may call that old code goes on beside
ADDS = {"add_column", "create_table", "create_index", "execute", "get_bind"}
STEPS = {
    module.revision: module
    for name in sorted(info.name for info in pkgutil.iter_modules(versions.__path__))
    for module in [importlib.import_module(f"{versions.__name__}.{name}")]
}


def later(monkeypatch, **more: str) -> None:
    """A release to come, with these migrations and the oldest code that each takes."""
    known = {**schema_window.steps(), **{name.removeprefix("r"): oldest for name, oldest in more.items()}}
    monkeypatch.setattr(schema_window, "steps", lambda: known)


def test_each_step_says_which_code_survives_it():
    """The mark of a step is that of the one before, or a newer one, and never newer than the step."""
    marks = schema_window.steps()
    assert list(marks) == sorted(STEPS)
    assert list(marks.values()) == sorted(marks.values())
    assert all(oldest <= revision for revision, oldest in marks.items())
    assert list(marks)[-1] == SCHEMA_REVISION


@pytest.mark.parametrize(
    "revision", [revision for revision, oldest in schema_window.steps().items() if oldest < revision]
)
def test_a_step_that_keeps_the_mark_only_adds(revision):
    """It makes tables, indexes and columns that may be left out, and drops, renames and demands nothing."""
    (source,) = [module.__file__ for name, module in STEPS.items() if name == revision]
    with open(source, encoding="utf-8") as file:
        parts = ast.parse(file.read()).body
    for part in (p for p in parts if getattr(p, "name", "") != "downgrade"):
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "op":
                assert node.attr in ADDS, f"{revision}: op.{node.attr}"


def test_columns_that_are_added_may_be_left_out(empty):
    """A step that keeps the mark adds no column, to a table that was there, that a writer must fill."""
    first = min(revision for revision, oldest in schema_window.steps().items() if oldest < revision)
    before = str(int(first) - 1).zfill(4)
    asked = (
        "SELECT m.name, p.name FROM sqlite_master m, pragma_table_info(m.name) p"
        " WHERE m.type = 'table' AND p.\"notnull\" = 1 AND p.dflt_value IS NULL"
        if empty.is_sqlite
        else "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND is_nullable = 'NO' AND column_default IS NULL"
    )
    found = []
    for revision in (before, "head"):
        migrate(empty, revision=revision)
        with empty.read() as connection:
            found.append({tuple(row) for row in connection.execute(text(asked))})
    tables = {table for table, _ in found[0]}
    assert {(table, column) for table, column in found[1] - found[0] if table in tables} == set()


def test_newer_is_used_where_the_database_allows_it(empty):
    """A schema of a release to come is accepted while the database says that code of this one may use it."""
    migrate(empty)
    set_revision(empty, "9999", oldest_code=SCHEMA_REVISION)
    check_schema(empty)
    assert migrate(empty) == migrate(empty, pre=True) == "9999"  # a rollback's migration job has nothing to do
    set_revision(empty, "9999", oldest_code="9998")
    with pytest.raises(StoreError, match="9999"):
        check_schema(empty)
    with pytest.raises(StoreError, match="9999"):
        migrate(empty)


def test_the_mark_is_written_when_it_is_migrated(empty):
    """A database carries the mark of its newest step; one from before the place for it has none."""
    migrate(empty, revision="0013")
    with empty.read() as connection:
        assert not schema_window.may_use(connection)
    migrate(empty)
    with empty.read() as connection:
        kept = connection.execute(text("SELECT oldest_code FROM alembic_version")).scalar_one()
    assert kept == schema_window.steps()[SCHEMA_REVISION]


def test_pre_stops_before_what_breaks_old_code(empty, monkeypatch):
    """--pre goes as far as the code that serves survives; what follows waits for the next time."""
    migrate(empty, revision="0013")
    later(monkeypatch, r0015="0015", r0016="0015")
    assert migrate(empty, pre=True) == "0014"
    assert schema_window.last_safe("0015", needed="0016") == "0016"
    later(monkeypatch, r0015="0014", r0016="0015")
    assert schema_window.last_safe("0014", needed="0015") == "0015"


def test_pre_refuses_what_cannot_be_done_while_serving(empty, monkeypatch):
    """Where the new release needs a step that old code does not survive, --pre changes nothing and says what to do."""
    migrate(empty, revision="0013")
    monkeypatch.setattr(schema_window, "steps", lambda: {**dict.fromkeys(STEPS, "0001"), "0014": "0014"})
    monkeypatch.setattr(database_module, "OLDEST_REVISION", "0014")
    with pytest.raises(StoreError, match="0014 on the way cannot be run while processes of schema 0013") as caught:
        migrate(empty, pre=True)
    assert "stop all processes" in caught.value.remedy
    with empty.read() as connection:
        assert revision_of(connection) == "0013"
    assert migrate(empty) == "0014"


def test_old_processes_are_seen(postgres, monkeypatch):
    """On PostgreSQL a step is refused while a process is connected whose code it would break."""
    name = postgres.new_database()
    database, other = Database(postgres.url(name)), None
    try:
        migrate(database, revision="0013")
        monkeypatch.setattr(schema_window, "steps", lambda: {**dict.fromkeys(STEPS, "0001"), "0014": "0014"})
        named = {"application_name": schema_window.session_name("0013")}
        other = create_engine(postgres.url(name), connect_args=named).connect()
        with pytest.raises(StoreError, match="processes of schema 0013 use the database") as caught:
            migrate(database)
        assert "--pre" in caught.value.remedy
        other.close()
        other.engine.dispose()
        give_up = time.monotonic() + 10
        while True:
            try:
                assert migrate(database) == "0014"
                break
            except StoreError:
                assert time.monotonic() < give_up
                time.sleep(0.05)
    finally:
        database.close()
        postgres.drop(name)


def test_our_sessions_are_named(postgres_url):
    """Sessions of PostgreSQL carry the schema of their code, unless DATABASE_URL names them."""
    for url, wanted in [
        (postgres_url, f"ragbandit schema {SCHEMA_REVISION}"),
        (f"{postgres_url}&application_name=x", "x"),
    ]:
        database = Database(url)
        with database.read() as connection:
            assert connection.execute(text("SHOW application_name")).scalar_one() == wanted
        database.close()


def test_a_migration_gives_way(postgres):
    """It waits for a table that somebody holds in tries so short that nobody is held up behind it."""
    name = postgres.new_database()
    database, holder = Database(postgres.url(name)), create_engine(postgres.url(name))
    try:
        migrate(database, revision="0011")
        done: list[str] = []
        with holder.connect() as held:
            held.execute(text("LOCK TABLE decisions IN ACCESS SHARE MODE"))
            going = threading.Thread(target=lambda: done.append(migrate(database)))
            going.start()
            give_up = time.monotonic() + 20
            while database.failed_write is None and time.monotonic() < give_up:
                time.sleep(0.05)
            assert database.failed_write is not None
            assert done == []
        going.join(30)
        assert done == [SCHEMA_REVISION]
    finally:
        holder.dispose()
        database.close()
        postgres.drop(name)


def test_two_migrations_at_once(empty):
    """Of several processes that migrate an empty database at once one does it, and all find it done."""
    found: list[str] = []

    def bring_up() -> None:
        with closing(Database(empty.url.render_as_string(hide_password=False))) as database:
            found.append(migrate(database))

    threads = [threading.Thread(target=bring_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [SCHEMA_REVISION] * 3


def test_waiting_for_somebody_else(empty):
    """A process that waits goes on as soon as the schema is there, and changes nothing itself."""
    migrate(empty, revision="0011")
    with pytest.raises(StoreError, match="schema 0011"):
        wait_for_schema(empty, seconds=0)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(wait_for_schema(empty, seconds=30)))
    waiting.start()
    migrate(empty)
    waiting.join(30)
    assert found == [SCHEMA_REVISION]
    assert OLDEST_REVISION <= SCHEMA_REVISION


def test_the_command(tmp_path, monkeypatch):
    """`migrate --pre` and `migrate --wait` say the revision, as `migrate` does."""
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'r.db'}")
    for options in (["--pre"], ["--wait", "0"], []):
        result = CliRunner().invoke(app, ["migrate", *options, "--json"])
        assert json.loads(result.output)["revision"] == SCHEMA_REVISION


def test_what_code_reads_is_there_at_the_oldest_schema(empty):
    """Every table and column that the code names exists in the oldest schema that it says it can use."""
    migrate(empty, revision=OLDEST_REVISION)
    with empty.read() as connection:
        context = MigrationContext.configure(connection)
        missing = [found for found in compare_metadata(context, metadata) if found[0] in ("add_table", "add_column")]
    assert missing == [], "raise OLDEST_REVISION"
