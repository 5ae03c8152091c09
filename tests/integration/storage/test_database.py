"""The two kinds of transaction: readers see one state and change nothing, writers queue."""

import pytest
from sqlalchemy import func, select

from ragbandit.router.errors import StoreError
from ragbandit.router.storage.rows.conversion import decision_row
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions


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


def test_reader_changes_nothing(postgres_url, make_decision):
    """On PostgreSQL a write inside a reader's transaction is refused as a StoreError, and nothing is kept."""
    database = Database(postgres_url)
    row = decision_row(make_decision("d1"))
    try:
        with pytest.raises(StoreError, match="read-only"), database.read() as connection:
            connection.execute(decisions.insert().values(row))
        with database.write() as connection:  # the same pool's writers are not read-only
            connection.execute(decisions.insert().values(row))
        with database.read() as connection:
            assert kept(connection) == 1
    finally:
        database.close()
