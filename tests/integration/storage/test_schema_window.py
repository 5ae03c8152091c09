"""Two releases on one database: which steps old code survives, and which newer schemas code accepts."""

import ast
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from ragbandit.router.storage.sql import schema
from ragbandit.router.storage.sql.database import SESSION, Database
from ragbandit.router.storage.sql.schema import check_schema, migrate, migration_steps, revision_of
from ragbandit.router.storage.sql.tables import OLDEST_REVISION, SCHEMA_REVISION, metadata
from ragbandit.shared.errors import StoreError
from tests.support.next_release import NEXT, become_next_release
from tests.support.waiting import at_once, until

from .test_migrations import set_revision

__all__ = ["become_next_release"]

#: operations allowed in a migration that runs while old code goes on; without an index, old code is slower
ADDS = {"add_column", "create_table", "create_index", "drop_index", "execute", "get_bind"}
#: columns that a writer must fill, by table
_MUST_BE_FILLED = {
    "sqlite": "SELECT m.name, p.name FROM sqlite_master m, pragma_table_info(m.name) p"
    " WHERE m.type = 'table' AND p.\"notnull\" = 1 AND p.dflt_value IS NULL",
    "postgresql": "SELECT table_name, column_name FROM information_schema.columns"
    " WHERE table_schema = 'public' AND is_nullable = 'NO' AND column_default IS NULL",
}


def columns(database) -> set[str]:
    with database.read() as connection:
        return {column["name"] for column in inspect(connection).get_columns("decisions")}


def test_each_step_says_which_code_survives_it(become_next_release):
    """The mark of a migration is that of the previous one or newer, and never newer than the migration."""
    become_next_release()
    marks = migration_steps()
    assert (list(marks), list(marks)[-1]) == (sorted(marks), NEXT)
    assert list(marks.values()) == sorted(marks.values())
    assert all(oldest <= revision for revision, oldest in marks.items())


def test_steps_that_keep_the_mark_only_add(become_next_release, empty):
    """They drop only indexes, rename and demand nothing: no column of a table that was there must be filled by a
    writer.
    """
    become_next_release()
    for revision in (revision for revision, oldest in migration_steps().items() if oldest < revision):
        (source,) = Path(schema.SCRIPTS, "versions").glob(f"{revision}_*.py")
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "op":
                assert node.attr in ADDS, f"{revision}: op.{node.attr}"
    filled = []
    for revision in ("1001", "head"):
        migrate(empty, revision=revision)
        with empty.read() as connection:
            asked = text(_MUST_BE_FILLED[connection.dialect.name])
            filled.append({tuple(row) for row in connection.execute(asked)})
    tables = {table for table, _ in filled[0]}
    assert {(table, column) for table, column in filled[1] - filled[0] if table in tables} == set()


def test_newer_is_used_where_the_database_allows_it(empty):
    """A schema of a release to come is accepted while the database says that code of this one may use it."""
    migrate(empty)
    set_revision(empty, "9999", code_from=SCHEMA_REVISION)
    check_schema(empty)
    assert migrate(empty) == migrate(empty, pre=True) == "9999"  # a rollback's migration job has nothing to do
    set_revision(empty, "9999", code_from="9998")
    with pytest.raises(StoreError, match="9999"):
        check_schema(empty)
    with pytest.raises(StoreError, match="9999") as caught:
        migrate(empty)
    assert "newer" in caught.value.remedy


@pytest.mark.parametrize(
    ("oldest_code", "reached"), [(NEXT, SCHEMA_REVISION), (SCHEMA_REVISION, NEXT)], ids=["breaks", "only adds"]
)
def test_pre_stops_before_what_breaks_old_code(empty, become_next_release, oldest_code, reached):
    """--pre goes as far as the code that serves survives; what follows waits for the next time."""
    migrate(empty)
    become_next_release(oldest_code=oldest_code)
    assert migrate(empty, pre=True) == reached
    assert ("made_for_a_test" in columns(empty)) == (reached == NEXT)
    assert migrate(empty) == NEXT


def test_pre_refuses_what_cannot_be_done_while_serving(empty, become_next_release):
    """Where the new release needs a step that old code does not survive, --pre changes nothing and says what to do."""
    migrate(empty)
    become_next_release(oldest_code=NEXT, needs=NEXT)
    refused = f"{NEXT} on the way cannot be run while processes of schema {SCHEMA_REVISION}"
    with pytest.raises(StoreError, match=refused) as caught:
        migrate(empty, pre=True)
    assert "stop all processes" in caught.value.remedy
    with empty.read() as connection:
        assert revision_of(connection) == SCHEMA_REVISION
    assert migrate(empty) == NEXT


def test_old_processes_are_seen(postgres, become_next_release):
    """On PostgreSQL a step is refused while a process is connected whose code it would break."""
    name = postgres.new_database()
    database, other = Database(postgres.url(name)), None
    try:
        migrate(database)
        become_next_release(oldest_code=NEXT)
        database.close()
        database = Database(f"{postgres.url(name)}&application_name={SESSION}{NEXT}")
        named = {"application_name": f"{SESSION}{SCHEMA_REVISION}"}
        other = create_engine(postgres.url(name), connect_args=named).connect()
        with pytest.raises(StoreError, match=f"processes of schema {SCHEMA_REVISION} use the database") as caught:
            migrate(database)
        assert "--pre" in caught.value.remedy
        other.close()
        other.engine.dispose()
        give_up = time.monotonic() + 10
        while True:
            try:
                assert migrate(database) == NEXT
                break
            except StoreError:
                assert time.monotonic() < give_up
                time.sleep(0.05)
    finally:
        database.close()
        postgres.drop(name)


def test_a_migration_gives_way(postgres, become_next_release):
    """A migration waits for a locked table in attempts so short that nobody is blocked behind it."""
    name = postgres.new_database()
    database, holder = Database(postgres.url(name)), create_engine(postgres.url(name))
    try:
        migrate(database)
        become_next_release()
        done: list[str] = []
        with holder.connect() as held:
            held.execute(text("LOCK TABLE decisions IN ACCESS SHARE MODE"))
            going = threading.Thread(target=lambda: done.append(migrate(database)))
            going.start()
            until(lambda: database.failed_write is not None, seconds=20)
            assert done == []
        going.join(30)
        assert done == [NEXT]
    finally:
        holder.dispose()
        database.close()
        postgres.drop(name)


def test_two_migrations_at_once(empty):
    """If several processes migrate an empty database at once, one does it, and all succeed."""
    revisions: list[str] = []

    def bring_up() -> None:
        with closing(Database(empty.url.render_as_string(hide_password=False))) as database:
            revisions.append(migrate(database))

    at_once(*[bring_up] * 3)
    assert revisions == [SCHEMA_REVISION] * 3


def test_what_code_reads_is_there_at_the_oldest_schema(empty):
    """Every table and column that the code names exists in the oldest schema that it says it can use."""
    assert OLDEST_REVISION <= SCHEMA_REVISION
    migrate(empty, revision=OLDEST_REVISION)
    with empty.read() as connection:
        context = MigrationContext.configure(connection)
        missing = [change for change in compare_metadata(context, metadata) if change[0] in ("add_table", "add_column")]
    assert missing == [], "raise OLDEST_REVISION"
