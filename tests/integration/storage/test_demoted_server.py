"""A PostgreSQL that fails over: no connection stays with a server that only reads, and nothing acknowledged is lost."""

from contextlib import closing

import pytest
from sqlalchemy import make_url, select, text

from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.rows.conversion import decision_row
from ragbandit.router.storage.sql.bulk_insert import insert_rows, run_statement
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.schema import migrate
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import NotFound, StoreError
from ragbandit.shared.types import Query
from tests.support.servers.postgres_pair import PostgresPair


def process(connection) -> int:
    """The id of the server's process of a connection."""
    return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()


def pipelined(connection, row):
    insert_rows(connection, decisions, [row])
    run_statement(connection, "SELECT 1 AS one")


def inserted_at_commit(connection, row):
    insert_rows(connection, decisions, [row])


def inserted(connection, row):
    connection.execute(decisions.insert().values(row))


def locked(connection, _row):
    connection.execute(select(decisions.c.id).with_for_update())


def locked_by_text(connection, _row):
    run_statement(connection, "SELECT id FROM decisions FOR UPDATE")


def wrapped(connection, row):
    try:
        inserted(connection, row)
    except Exception as error:
        raise NotFound("the error of the driver is only the cause of this one") from error


def raised(code: str):
    def statement(connection, _row):
        connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'leaving' USING ERRCODE = '{code}'; END $$"))

    statement.__name__ = code
    return statement


def write_while_refused(database, statement, row):
    with database.write() as connection:
        run_statement(connection, "SET TRANSACTION READ ONLY")
        statement(connection, row)


@pytest.mark.parametrize(
    "statement",
    [pipelined, inserted_at_commit, inserted, locked, locked_by_text, wrapped]
    + [raised(code) for code in ("57P01", "57P02", "57P03", "08006", "08P01", "25006")],
)
def test_connections_to_a_server_that_leaves_are_closed(postgres_url, make_decision, statement):
    """If a server refuses a write because it only reads or ends, the next one and all reads use new connections."""
    row = decision_row(make_decision("d1"))
    with closing(Database(postgres_url)) as database:
        with database.connection() as first, database.connection() as second:
            before = {process(first), process(second)}
        with pytest.raises((StoreError, NotFound)):
            write_while_refused(database, statement, row)
        with database.connection() as first, database.write() as second:
            assert not before & {process(first), process(second)}
            insert_rows(second, decisions, [row])


@pytest.mark.parametrize("code", ["40001", "22012", "P0001"])
def test_other_faults_keep_the_connection(postgres_url, code):
    """A fault of a statement or of a row does not cost the connection."""
    with closing(Database(postgres_url)) as database:
        with database.connection() as connection:
            before = process(connection)
        with pytest.raises(StoreError), database.write() as connection:
            raised(code)(connection, None)
        with database.connection() as connection:
            assert process(connection) == before


def test_nothing_is_read_from_a_server_that_only_reads(postgres, postgres_url, make_decision):
    """While only a server is reachable that refuses writes, reads fail too, since what it has may be out of date; the
    first write after that succeeds.
    """
    name = make_url(postgres_url).database
    row = decision_row(make_decision("d1"))
    with closing(Database(postgres_url)) as database:
        with database.connection() as connection:
            before = process(connection)
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        postgres.execute(f"SELECT pg_terminate_backend({before}, 5000)")
        for use in (database.read, database.connection, database.write):
            with pytest.raises(StoreError, match="read-only"), use():
                pass
        postgres.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        with database.write() as connection:
            insert_rows(connection, decisions, [row])


@pytest.mark.parametrize("through", ["hosts", "address"])
def test_a_standby_takes_over(settings, through):
    """While no server takes writes nothing is decided; the first question after the promotion is decided, and every
    acknowledged decision is there, once. It holds for a URL of both servers, and for an address that moves and whose
    connections may only read.
    """
    with closing(PostgresPair()) as pair:
        url = pair.hosts if through == "hosts" else f"{pair.address}?target_session_attrs=any"
        with closing(Database(url)) as database:
            migrate(database)
        with Router.open(settings(database_url=url), jobs=MemoryJobs()) as router:
            acknowledged = {key: router.route(Query(id=key, text="Question?")) for key in ("q1", "q2", "q3")}
            pair.demote(crash=True)
            for _ in range(2):
                with pytest.raises(StoreError):
                    router.route(Query(id="q4", text="Question?"))
            pair.promote()
            acknowledged["q4"] = router.route(Query(id="q4", text="Question?"))
            for key, decision in acknowledged.items():
                again = router.route(Query(id=key, text="Question?"))
                assert (again.arm, again.made_at) == (decision.arm, decision.made_at)
            with router.database.read() as connection:
                assert sorted(connection.execute(select(decisions.c.id)).scalars()) == sorted(acknowledged)
