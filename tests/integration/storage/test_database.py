"""The two kinds of transaction: readers see one state and change nothing, writers queue."""

import socket
import sqlite3
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import event, func, select

from ragbandit.router.config.settings import Settings
from ragbandit.router.storage.label_queue import count_items
from ragbandit.router.storage.rows.conversion import decision_row
from ragbandit.router.storage.sql import connections, database as database_module
from ragbandit.router.storage.sql.bulk_insert import insert_rows, run_statement, send
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.pipelined import PipelinedConnection
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import StoreError
from tests.conftest import on_sqlite

#: a PostgreSQL that does not exist
NOWHERE = "postgresql+psycopg://me:pw@127.0.0.1:9/name"


def kept(connection) -> int:
    return connection.execute(select(func.count()).select_from(decisions)).scalar_one()


def test_reader_sees_one_state(database, database_url, make_decision):
    """What another connection commits while a reader reads is not seen by it, and is seen by the next one."""
    other = Database(database_url)
    try:
        with database.read() as connection:
            before = kept(connection)
            with other.write() as writer:
                writer.execute(decisions.insert().values(decision_row(make_decision("d1"))))
            assert kept(connection) == before == 0
        with database.read() as connection:
            assert kept(connection) == 1
    finally:
        other.close()


def test_connections_that_the_server_closed_are_replaced(postgres_url):
    """After the server has closed all connections of the pool, the next transaction opens another one."""
    database, other = Database(postgres_url), Database(postgres_url)
    try:
        with database.read() as connection, database.connection() as second:
            closed = [one.exec_driver_sql("SELECT pg_backend_pid()").scalar() for one in (connection, second)]
        with other.connection() as connection:
            for process in closed:
                assert connection.exec_driver_sql(f"SELECT pg_terminate_backend({process}, 5000)").scalar()
        with database.read() as connection, database.connection() as second:
            opened = [one.exec_driver_sql("SELECT pg_backend_pid()").scalar() for one in (connection, second)]
        assert not {*opened} & {*closed}
    finally:
        database.close()
        other.close()


def test_hosts_and_a_folder_are_taken_as_libpq_takes_them(postgres, postgres_url, proxy):
    """If one of several hosts with ports is down, the next one is tried; an encoded host is the folder of a socket."""
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    folder = str(postgres.folder).replace("/", "%2F")
    for place in (f"127.0.0.1:9,127.0.0.1:{proxy.port}", folder, f"{folder}:5432"):
        database = Database(Settings(database_url=f"postgres://postgres@{place}/{name}").database)
        with database.read() as connection:
            assert kept(connection) == 0
        database.close()


@pytest.mark.parametrize(
    "option", ["ssl=true", "pgbouncer=true", "sslmode=no-verify", "target_session_attrs=master", "connect_timeout=x"]
)
def test_an_option_of_another_client_is_named(option):
    """An option, or a value of one, that only other clients of PostgreSQL have is an error with this remedy."""
    with pytest.raises(StoreError, match="database failed") as caught, Database(f"{NOWHERE}?{option}").read():
        pass
    assert "correct the options in DATABASE_URL" in caught.value.remedy


def test_a_pooler_that_refuses_the_options_of_a_session_is_named():
    """Hosted poolers refuse startup parameters: the remedy is a URL of PostgreSQL itself."""
    fault = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(8)  # asks for TLS
            connection.sendall(b"N")
            connection.recv(4096)
            connection.sendall(b"E" + (len(fault) + 4).to_bytes(4, "big") + fault)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        url = NOWHERE.replace(":9/", f":{listener.getsockname()[1]}/") + "?gssencmode=disable"
        with (
            pytest.raises(StoreError, match="startup parameter") as caught,
            Database(url).read(),
        ):
            pass
        thread.join(10)
    assert "not to a pooler" in caught.value.remedy


@pytest.mark.parametrize("new", [False, True])
def test_who_finds_sqlite_taken_tries_again_soon(tmp_path, monkeypatch, new):
    """A writer, and who opens a new file while another process switches it to WAL, tries again after LOCK_RETRY_S, as
    SQLite itself does not wait long, and goes on once the other has ended.
    """
    monkeypatch.setattr(database_module, "LOCK_WAIT_S", 0.05)
    database, slept = Database(f"sqlite:///{tmp_path}/x.db"), []
    if not new:
        with database.read():  # the journal is set up
            pass
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE" if new else "BEGIN IMMEDIATE")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        other.rollback()

    monkeypatch.setattr(database_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with database.read() if new else database.write() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 50
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    assert slept == [database_module.LOCK_RETRY_S]
    other.close()
    database.close()


@on_sqlite  # PostgreSQL's plans for few rows depend on chance
@pytest.mark.parametrize("tenant", [None, "default"])
def test_the_labels_of_today_are_counted_in_an_index(database, tenant):
    """No other feedback is read, however much there is."""
    statements = []
    with database.read() as connection:
        event.listen(connection, "before_cursor_execute", lambda *given: statements.append(given[2:4]))
        assert count_items(connection, tenant=tenant, now=1e9) == (0, 0, 0)
        sql, parameters = statements[-1]
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters).all()
    assert "feedback_labels" in str(plan)


def test_statements_of_text(database):
    """Statements of text take values and lists on both databases, and their faults are StoreErrors."""
    query = "SELECT label, retired_at IS NULL AS in_use FROM policies WHERE label IN ? AND made_at > ? ORDER BY label"
    insert = "INSERT INTO policies (label, algorithm, params, encoder_hash, made_at) VALUES (?, ?, ?, ?, ?)"
    with database.write() as connection:
        for label in ("a", "b", "c?%"):
            assert run_statement(connection, insert, label, "uniform", "{}", "", 2.0) == []
    with database.connection() as connection:
        found = run_statement(connection, query, ["a", "c?%", "none"], 1.0)
        assert [(row["label"], bool(row["in_use"])) for row in found] == [("a", True), ("c?%", True)]
        assert run_statement(connection, query, [], 1.0) == []
    with pytest.raises(StoreError, match="the database failed"), database.write() as connection:
        run_statement(connection, insert, "a", "uniform", "{}", "", 3.0)
    with pytest.raises(StoreError, match="absent"), database.connection() as connection:
        run_statement(connection, "SELECT 1 FROM absent")


@pytest.mark.parametrize("option", ["pgbouncer=true", "schema=public", "connect_timeout=soon"])
def test_an_option_that_libpq_does_not_have_is_named(option):
    """An option of another client in DATABASE_URL ends in an error with its name and the place to correct it."""
    database, name = Database(f"postgresql+psycopg://127.0.0.1:1/name?{option}"), option.partition("=")[0]
    with closing(database), pytest.raises(StoreError, match=name) as caught, database.connection():
        pass
    assert "DATABASE_URL" in str(caught.value.remedy)


@pytest.mark.parametrize("fails", [False, True])
def test_statements_that_wait_are_of_one_transaction(database, make_decision, fails):
    """Statements that wait run before a later one of SQLAlchemy, and if one of them fails, nothing is stored."""
    rows = [decision_row(make_decision(key)) for key in ("d1", "d2")]
    try:
        with database.write() as connection:
            insert_rows(connection, decisions, rows[:1])
            assert kept(connection) == 1
            one = send(connection, "SELECT id FROM decisions WHERE id IN ?", ["d1"])
            insert_rows(connection, decisions, rows[:1] if fails else rows[1:])
            assert one() == [{"id": "d1"}]
    except StoreError:
        assert fails
        assert database.failed_write is None, "the row is at fault, not the database"
    with database.read() as connection:
        assert kept(connection) == (0 if fails else 2)


def test_a_connection_lost_while_statements_wait(postgres_url, make_decision):
    """If the server ends a session before the commit, nothing is stored, which the error cannot know, and the next
    transaction succeeds.
    """
    database, other = Database(f"{postgres_url}&prepare_threshold=none"), Database(postgres_url)
    row = decision_row(make_decision("d1"))

    def write_while_the_session_ends():
        with database.write() as connection:
            process = run_statement(connection, "SELECT pg_backend_pid() AS id")[0]["id"]
            insert_rows(connection, decisions, [row])
            with other.connection() as killer:
                assert run_statement(killer, "SELECT pg_terminate_backend(?, 5000) AS ended", process)[0]["ended"]

    try:
        with pytest.raises(StoreError, match="it is not known whether this was written"):
            write_while_the_session_ends()
        assert database.failed_write is not None
        with database.write() as connection:
            insert_rows(connection, decisions, [row])
        with other.read() as connection:
            assert kept(connection) == 1
    finally:
        database.close()
        other.close()


def test_a_connection_in_use_is_closed_after_its_database(database_url):
    """A connection that is returned after `close` is closed too, so that its server does not keep it."""
    database = Database(database_url)
    with database.read() as connection:
        driver = connection.connection.driver_connection
        database.close()
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    with pytest.raises((psycopg.OperationalError, sqlite3.ProgrammingError), match="closed"):
        driver.execute("SELECT 1")


def test_connections_are_bounded(database_url, monkeypatch):
    """More than LIMIT uses at once wait, and fail after WAIT_S; KEPT connections stay open."""
    monkeypatch.setattr(connections, "WAIT_S", 0.01)
    with closing(Database(database_url)) as database:
        with ExitStack() as stack:
            drivers = [stack.enter_context(database.connection()).driver for _ in range(connections.LIMIT)]
            with pytest.raises(StoreError, match="16 connections"), database.write():
                pass
            assert database.failed_write is not None
        with database.read() as connection:
            assert run_statement(connection, "SELECT 1 AS one")[0]["one"] == 1
            assert connection.driver in drivers
        assert len({*map(id, drivers)}) == connections.LIMIT
        closed = 0
        for driver in drivers:
            try:
                driver.execute("SELECT 1")
            except (psycopg.OperationalError, sqlite3.ProgrammingError):
                closed += 1
        assert closed == connections.LIMIT - connections.KEPT


def test_a_connection_whose_pipeline_broke_is_closed(postgres_url, monkeypatch, caplog):
    """A pipeline that cannot end, as in a crash of the server, is one StoreError: the pool logs no tracebacks."""

    @contextmanager
    def broken(driver):
        with psycopg.Connection.pipeline(driver) as pipeline:
            yield pipeline
        driver.pgconn.enter_pipeline_mode()
        driver.pgconn.send_query_params(b"SELECT 1", None)
        driver.pgconn.exit_pipeline_mode()  # fails, since the result was not read

    with closing(Database(postgres_url)) as database:
        with monkeypatch.context() as patch:
            patch.setattr(PipelinedConnection, "pipeline", broken)
            with pytest.raises(StoreError, match="pipeline mode"), database.write() as connection:
                send(connection, "SELECT 1 AS one")()
        with database.write() as connection:
            assert run_statement(connection, "SELECT 1 AS one")[0]["one"] == 1
    assert caplog.records == []
