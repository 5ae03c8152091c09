"""The schema on SQLite and PostgreSQL: what the migrations build, and which databases are refused."""

from dataclasses import replace
from functools import partial

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, select, text

from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.rows.conversion import decision_row
from ragbandit.router.storage.sql import schema
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.schema import check_schema, migrate, wait_for_schema
from ragbandit.router.storage.sql.tables import FORMER_FLAGS, SCHEMA_REVISION, decisions, metadata, schema_at
from ragbandit.shared.errors import StoreError
from tests.support.examples import made_decision
from tests.support.request_facts import records


def differences(database) -> list:
    with database.read() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True, "target_metadata": metadata}
        )
        found = compare_metadata(context, metadata)
        return [one for one in found if not (one[0] == "remove_column" and one[3].name in FORMER_FLAGS)]


def table_names(database) -> set[str]:
    with database.read() as connection:
        return set(inspect(connection).get_table_names())


def set_revision(database, revision: str, *, code_from: str = SCHEMA_REVISION) -> None:
    """Say that a migration of a release to come was run, and which code it takes."""
    values = {"revision": revision, "oldest": code_from}
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision, code_from = :oldest"), values)


def test_migrated_is_declared(empty):
    """The migrations build exactly the tables that ragbandit.router.storage.sql.tables declares."""
    assert migrate(empty) == migrate(empty) == SCHEMA_REVISION
    check_schema(empty)
    assert differences(empty) == []
    assert table_names(empty) == set(metadata.tables) | {"alembic_version"}


@pytest.mark.parametrize(
    ("columns", "revision"),
    [
        ("version_num VARCHAR(32), code_from VARCHAR(32)", "0011"),
        ("version_num VARCHAR(32)", "a3f9c2d41b7e"),  # another product's
    ],
)
def test_a_schema_of_no_release_is_refused(empty, columns, revision):
    """A database with a revision that no release made is refused by every way in, with a remedy, and not changed."""
    with empty.write() as connection:
        connection.execute(text(f"CREATE TABLE alembic_version ({columns})"))
        connection.execute(text(f"INSERT INTO alembic_version (version_num) VALUES ('{revision}')"))
    for way_in in (check_schema, migrate, partial(migrate, pre=True), partial(wait_for_schema, seconds=0)):
        with pytest.raises(StoreError, match=f"schema {revision}, which no release of RagBandit made") as caught:
            way_in(empty)
        assert "use an empty database" in caught.value.remedy
    assert table_names(empty) == {"alembic_version"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("ALTER TABLE audit_log ADD COLUMN sha256 VARCHAR(64)", "the table audit_log has the column sha256"),
        ("ALTER TABLE jobs DROP COLUMN facts", "the table jobs lacks the column facts"),
        ("ALTER TABLE leases RENAME TO other", "the table leases is missing"),
        (
            """ALTER TABLE cancellations RENAME TO other; CREATE TABLE cancellations
            (decision_id VARCHAR(64) NOT NULL PRIMARY KEY, asked_at DOUBLE PRECISION)""",
            "the column cancellations.asked_at must be NOT NULL",
        ),
        (
            """ALTER TABLE leases RENAME TO other; CREATE TABLE leases
            (name VARCHAR(64) NOT NULL, holder VARCHAR(128) NOT NULL, expires_at DOUBLE PRECISION NOT NULL)""",
            "the table leases has no unique key name",
        ),
    ],
)
def test_other_tables_under_the_same_revision_are_refused(empty, change, fault):
    """A store whose tables differ from what its revision declares is refused by every way in, with a remedy."""
    migrate(empty)
    with empty.write() as connection:
        for statement in change.split(";"):
            connection.execute(text(statement))
    for way_in in (check_schema, migrate, partial(migrate, pre=True), partial(wait_for_schema, seconds=0)):
        with pytest.raises(StoreError, match=f"has schema {SCHEMA_REVISION}, but {fault}: an unreleased") as caught:
            way_in(empty)
        assert "ragbandit data export" in caught.value.remedy


def test_further_tables_and_indexes_are_allowed(empty):
    """Further indexes and tables are no fault; the first revision is compared with its own tables."""
    migrate(empty, revision="1001")
    with empty.write() as connection:
        connection.execute(text("CREATE TABLE mine (number INTEGER)"))
        connection.execute(text("CREATE INDEX mine_too ON decisions (tenant)"))
    assert migrate(empty) == check_schema(empty) == SCHEMA_REVISION


def test_failed_migration_leaves_nothing(empty):
    """A migration that breaks off leaves the database as it was."""
    config = Config()
    config.set_main_option("script_location", "ragbandit:migrations")

    def break_off() -> None:
        with empty.write() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        break_off()
    assert table_names(empty) == set()


def test_empty_sqlite_sets_itself_up(tmp_path, settings):
    """An empty SQLite database is set up when it is opened, its folder included."""
    url = f"sqlite:///{tmp_path / 'new' / 'folder' / 'ragbandit.db'}"
    database = open_database(settings(database_url=url))
    try:
        assert differences(database) == []
    finally:
        database.close()


def test_empty_postgresql_is_refused(postgres, settings):
    """An empty PostgreSQL database is refused with the command to run: nobody migrates a server by accident."""
    name = postgres.new_database()
    database = Database(postgres.url(name))
    try:
        with pytest.raises(StoreError) as caught:
            check_schema(database)
        assert "ragbandit migrate" in caught.value.remedy
        assert caught.value.field == "database_url"
        assert table_names(database) == set()
    finally:
        database.close()
        postgres.drop(name)


@pytest.mark.parametrize(("revision", "fits"), [("1006", False), ("1007", True), ("1008", True), ("1009", False)])
def test_a_window_of_schemas(empty, monkeypatch, revision, fits):
    """Every schema from the oldest that the code can use to its own is accepted as it is; those around are refused."""
    migrate(empty)
    monkeypatch.setattr(schema, "OLDEST_REVISION", "1007")
    monkeypatch.setattr(schema, "SCHEMA_REVISION", "1008")
    set_revision(empty, revision, code_from="9999")
    if fits:
        check_schema(empty)
        return
    with pytest.raises(StoreError, match="needs 1007 to 1008") as caught:
        check_schema(empty)
    assert ("ragbandit migrate" if revision == "1006" else "newer") in caught.value.remedy


def test_turns_of_older_stores_belong_to_their_decision(empty):
    """Schema 1004: rows of a tool loop name their decision, and no ledger counts them; turns that were kept for a
    conversation, and learned, stay as they are.
    """
    migrate(empty, revision="1003")
    older = schema_at("1003").tables
    drawn, loop = made_decision("d1", made_at=1.0), {"tool_turn": {"first": "d1", "previous": "d1", "turn": 2}}
    kept = replace(made_decision("d3", made_at=3.0), facts={"sticky": {"first": "d1", "turn": 2, "turns": 3}})
    turn = made_decision("d2", made_at=2.0)
    turn = replace(turn, query=replace(turn.query, arm_by="calls", **records(**loop)))
    names = [column.name for column in older["decisions"].columns if not column.system]
    rows = [{name: row[name] for name in names} for row in map(decision_row, (drawn, turn, kept))]
    closed = {"policy": "main", "state": "closed", "reason": "the caller chose the arm", "made_at": 2.0}
    waits = {"policy": "main", "decided_at": 1.0, "run_by": "caller", "has_outcome": False, "has_feedback": False}
    with empty.write() as connection:
        connection.execute(older["decisions"].insert(), rows)
        connection.execute(older["closures"].insert(), [{**closed, "decision_id": "d2"}])
        open_rows = [{**waits, "decision_id": key, "has_reward": False} for key in ("d1", "d3")]
        connection.execute(older["waiting"].insert(), open_rows)
    migrate(empty)
    with empty.read() as connection:
        named = connection.execute(select(decisions.c.id, decisions.c.turn_of).order_by(decisions.c.id)).all()
        assert [tuple(row) for row in named] == [("d1", None), ("d2", "d1"), ("d3", None)]
        counts = kept_of(connection)
        assert (counts["decided"], counts["closed"], counts["waiting"]) == (2, 0, 2)
        assert counts == row_counts(connection, label="main")


def kept_of(connection):
    return stored_counts(connection, label="main")
