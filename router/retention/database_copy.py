"""Database copy: one state of the whole database as a SQLite file, and such a file put into an empty database.

Of SQLite by its online backup, within one read transaction, so that writers go on and the copy never begins anew. Of
PostgreSQL in one repeatable-read transaction, table by table, so that no client program is needed. The file has the
schema that its source had; it is migrated when it is restored. One form for both makes each restorable into the other.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, MetaData, Table, text

from ragbandit.router.retention.places import Progress
from ragbandit.router.storage.sql.database import Database, migrate, revision_of, upgrade
from ragbandit.router.storage.sql.tables import OLDEST_REVISION, SCHEMA_REVISION
from ragbandit.shared.errors import StoreError

#: pages of SQLite that are copied between two looks at the progress
PAGES: Final = 1000
#: rows that are read and written at once
BATCH: Final = 2000
#: of Alembic: not ours to copy, the migrations write it
_REVISION_TABLE: Final = "alembic_version"


def copy_database(database: Database, *, file: Path, progress: Progress) -> str:
    """Write one state of the database to a new SQLite file; returns its schema revision. Raises StoreError, OSError."""
    with database.read() as connection:
        revision = revision_of(connection)
        if revision is None or not OLDEST_REVISION <= revision <= SCHEMA_REVISION:
            raise StoreError(
                f"the database has schema {revision}, this version copies {OLDEST_REVISION} to {SCHEMA_REVISION}",
                field="database_url",
                remedy="back up with the version of ragbandit that runs on it",
            )
        if database.is_sqlite:
            _online_backup(connection, file=file, progress=progress)
        else:
            _copy_tables(connection, file=file, revision=revision, progress=progress)
    with opened(file, to_write=True) as copied:  # no journal beside it: the file is all there is
        copied.execute("PRAGMA journal_mode=DELETE")
    return revision


def _online_backup(connection: Connection, *, file: Path, progress: Progress) -> None:
    source: Any = connection.connection.driver_connection
    # The copy is of this transaction's state: without it, every write of another process would begin it anew.
    source.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()

    def report(_status: int, left: int, total: int) -> None:
        progress("pages of the database", total - left, total)

    with opened(file, to_write=True) as target:
        source.backup(target, pages=PAGES, progress=report, sleep=0.001)


def _copy_tables(connection: Connection, *, file: Path, revision: str, progress: Progress) -> None:
    empty = Database(f"sqlite:///{file}")
    try:
        migrate(empty, revision=revision)
    finally:
        empty.close()
    with opened(file, to_write=True) as target:
        target.execute("PRAGMA synchronous=OFF")  # it is synchronised as a whole when it is done
        target.execute("BEGIN")
        for table in tables_of(connection):
            target.execute(f'DELETE FROM "{table}"')  # noqa: S608 - names from the schema
            rows = connection.execution_options(yield_per=BATCH).exec_driver_sql(_select(table))
            marks = ", ".join("?" * len(table.columns))
            insert = f'INSERT INTO "{table}" ({_columns(table)}) VALUES ({marks})'  # noqa: S608
            done = 0
            for batch in rows.partitions(BATCH):
                target.executemany(insert, [tuple(row) for row in batch])
                done += len(batch)
                progress(f"rows of {table}", done, 0)
        target.execute("COMMIT")


def fill_database(
    file: Path, *, connection: Connection, revision: str, progress: Progress, totals: Callable[[str], int]
) -> None:
    """Put a copy into an empty PostgreSQL database, in the caller's write transaction, and migrate it.

    totals: table -> rows that it must have. Raises StoreError.
    """
    connection.execute(text("SET LOCAL statement_timeout = 0"))  # a large table takes longer than a statement of ours
    upgrade(connection, revision=revision, exports=file.parent)
    driver: Any = connection.connection.driver_connection
    with opened(file) as source:
        tables = tables_of(connection)
        for table in tables:
            total = totals(table.name)
            if connection.exec_driver_sql(f'SELECT 1 FROM "{table}" LIMIT 1').first():  # noqa: S608 - the migrations'
                connection.exec_driver_sql(f'DELETE FROM "{table}"')  # noqa: S608
            done = 0
            with driver.cursor() as cursor, cursor.copy(f'COPY "{table}" ({_columns(table)}) FROM STDIN') as copy:
                for row in source.execute(_select(table)):
                    copy.write_row(row)
                    done += 1
                    if done % BATCH == 0:
                        progress(f"rows of {table}", done, total)
            if done != total:
                raise StoreError(f"{table} has {done} rows in the copy, {total} were taken")
        for table in tables:
            _count_on(connection, table)
    upgrade(connection, revision="head", exports=file.parent)


def _count_on(connection: Connection, table: Table) -> None:
    """Have the numbers that PostgreSQL gives out go on after those that are there."""
    for column in table.columns:
        if column.server_default is not None and "nextval(" in str(getattr(column.server_default, "arg", "")):
            connection.execute(
                text(
                    f"SELECT setval(pg_get_serial_sequence(:table, :column), "  # noqa: S608
                    f'(SELECT COALESCE(MAX("{column.name}"), 0) + 1 FROM "{table}"), false)'
                ),
                {"table": table.name, "column": column.name},
            )


def tables_of(connection: Connection) -> list[Table]:
    """The tables of a database of ours as they are there, those first that others refer to."""
    there = MetaData()
    there.reflect(connection)
    return [table for table in there.sorted_tables if table.name != _REVISION_TABLE]


def count_rows(file: Path) -> dict[str, int]:
    """Rows of every table of a copy."""
    with opened(file) as copied:
        names: Sequence[tuple[str]] = copied.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
        count = 'SELECT COUNT(*) FROM "{}"'
        return {
            name: int(copied.execute(count.format(name)).fetchone()[0]) for (name,) in names if name != _REVISION_TABLE
        }


@contextlib.contextmanager
def opened(file: Path, *, to_write: bool = False) -> Iterator[sqlite3.Connection]:
    """A copy, open; what SQLite says against it is a StoreError. to_write: it may be made, for its owner alone."""
    if to_write:
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    mode = "rw" if to_write else "ro"
    try:
        url = f"{file.absolute().as_uri()}?mode={mode}"
        with contextlib.closing(sqlite3.connect(url, uri=True, isolation_level=None)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise StoreError(
            f"{file.name} cannot be used: {error}",
            field="backup",
            remedy="check the space on this disk and that this user may write there, then try again",
        ) from error


def _columns(table: Table) -> str:
    """The columns as SQL wants them."""
    return ", ".join(f'"{column.name}"' for column in table.columns)


def _select(table: Table) -> str:
    return f'SELECT {_columns(table)} FROM "{table}"'  # noqa: S608 - names from the schema
