"""Moves a store from SQLite into an empty PostgreSQL: all rows of all tables, in batches, so that a move can continue.

Each batch is one transaction of COPY, and a table's rows are copied in the order of SQLite's rowid. So the number of
rows that PostgreSQL has is the position at which a move continues after an interruption. Until the move has ended,
`alembic_version` names MOVING instead of a schema, so that no process of any release uses the database.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from sqlalchemy import Table, func, inspect, literal, select, text

from ragbandit.router.storage.sql import schema
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import database_time, held_leases, is_holder_alive
from ragbandit.router.storage.sql.schema import MOVING, RUN_ALONE
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION, counters, leases, metadata, service_secrets
from ragbandit.shared.errors import Conflict, NotReady, StoreError

#: number of rows per transaction; rows are read and sent one by one, so memory does not depend on it
ROWS = 5_000
_EMPTY: Final = "choose an empty database, or empty this one: DROP SCHEMA public CASCADE; CREATE SCHEMA public"
_USED: Final = "if this store was moved there before, the move is complete: use it; else choose an empty database"
_STOP: Final = "stop every process that uses the SQLite store"


def move(source: Database, target: Database, *, progress: Callable[[int, int], None]) -> int:
    """Copy all rows of SQLite (`read_only`) to PostgreSQL; an interrupted move continues. Returns the number of rows.

    If an earlier call has completed the move, this one changes nothing.
    progress: called after each batch with (number of rows copied, number of all rows).
    Raises NotReady if the source is in use, Conflict if it has changed or the target has rows, and StoreError.
    """
    with source.read() as connection:
        _check_source(source, revision=schema.revision_of(connection))
        driver = connection.driver
        # PostgreSQL refuses these characters.
        driver.text_factory = lambda value: value.decode("utf-8", "replace").replace("\0", "\ufffd")
        rows, state = _state(connection)
        if _is_complete(target, rows, state=state):
            return sum(rows.values())
        _begin(target, state=state)
        with target.write() as copies:
            copies.execute(RUN_ALONE)  # the server may still be committing the last batch of a killed move
            copied = _counts(copies)
        for table in metadata.sorted_tables:
            names = ",".join(f'"{column.name}"' for column in table.columns)
            query = f"SELECT {names} FROM {table.name} ORDER BY rowid LIMIT -1 OFFSET ?"  # noqa: S608 # names of ours
            remaining = driver.execute(query, (copied[table.name],))
            while count := _copy_batch(target, table, names=names, rows=remaining, copied=copied[table.name]):
                copied[table.name] += count
                progress(sum(copied.values()), sum(rows.values()))
    with source.read() as later, target.write() as connection:
        connection.execute(RUN_ALONE)
        # Keys are unique, so equal numbers of rows mean equal sets of rows.
        if _state(later) != (rows, state) or _counts(connection) != rows:
            message = "another process wrote to the SQLite store or to PostgreSQL during the move"
            raise Conflict(message, field="from", remedy=f"{_STOP}; {_EMPTY}")
        schema.store_revision(connection, SCHEMA_REVISION)
        connection.execute(text("ANALYZE"))
    return sum(rows.values())


def _check_source(source: Database, *, revision: str | None) -> None:
    if revision != SCHEMA_REVISION:
        message = f"the SQLite store has schema {revision or 'none'}, and this release moves schema {SCHEMA_REVISION}"
        raise StoreError(message, field="from", remedy=f"first run with DATABASE_URL={source.url}: `ragbandit migrate`")
    for lease in held_leases(source, leases.c.expires_at > database_time(source)):
        if is_holder_alive(lease.holder) is not False:
            message = f"the SQLite store is in use: {lease.holder} holds the lease {lease.name!r}"
            raise NotReady(message, field="from", remedy=f"{_STOP}, then run this again")


def _counts(connection: Connection) -> dict[str, int]:
    counted = {table.name: select(func.count()).select_from(table) for table in metadata.sorted_tables}
    return {name: int(connection.execute(query).scalar_one()) for name, query in counted.items()}


def _state(connection: Connection) -> tuple[dict[str, int], str]:
    """Returns (`_counts`, a hash of the counters and secrets). Two states of a store differ in one of these: a change
    that adds no row increases a counter. Two stores with equal counts differ in their random secrets.
    """
    tables = (counters, service_secrets)
    rows, values = _counts(connection), [sorted(map(tuple, connection.execute(select(table)))) for table in tables]
    return rows, f"{MOVING} {hashlib.sha256(repr((rows, values)).encode()).hexdigest()[:24]}"


def _is_complete(target: Database, rows: dict[str, int], *, state: str) -> bool:
    """Whether an earlier move of this store has ended, and nothing has used the target since."""
    with target.read() as connection:
        if schema.schema_version(connection)[0] != SCHEMA_REVISION:
            return False
        return _state(connection) == (rows, state)


def _begin(target: Database, *, state: str) -> None:
    """Create the schema in a database without rows and mark it as MOVING, unless this move has begun already. Raises
    Conflict if the database has other rows.
    """
    with target.read() as connection:
        version, begun = schema.schema_version(connection)
        names = inspect(connection).get_table_names()
        present = [table for table in metadata.sorted_tables if table.name in names and table is not counters]
        first = {table.name: select(literal(1)).select_from(table).limit(1) for table in present}
        filled = [name for name, query in first.items() if connection.execute(query).first()]
    if (version, begun) == (MOVING, state):
        return
    if filled or (version != MOVING and (version or "") > SCHEMA_REVISION):
        message = "DATABASE_URL has rows of another store or release, or of this store before it changed"
        remedy = f"{_STOP}; {_EMPTY}" if version == MOVING else _USED
        raise Conflict(f"{message}: {', '.join(filled)}", field="database_url", remedy=remedy)
    if version != MOVING:
        schema.migrate(target)
    with target.write() as connection:
        connection.execute(counters.delete())  # rows with the value 0 that a migration inserted
        schema.store_revision(connection, MOVING, code_from=state)


def _copy_batch(target: Database, table: Table, *, names: str, rows: Iterator[tuple[Any, ...]], copied: int) -> int:
    """Copy the next rows in one transaction; returns their number. copied: number of rows copied before."""
    try:
        with target.write() as connection:
            connection.execute(RUN_ALONE)
            with connection.driver.cursor() as cursor:
                with cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy:
                    for row in itertools.islice(rows, ROWS):
                        copy.write_row(row)
                return int(cursor.rowcount)
    except StoreError as error:
        details: Any = getattr(error.__cause__, "diag", None)
        place = re.search(r"line \d+, column \w+", getattr(details, "context", None) or "")
        message = f"table {table.name} after row {copied:,}{f', {place[0]}' if place else ''}: {error.message}"
        remedy = "mend the cause (the connection, the disk, or a row in SQLite); the same command continues the move"
        raise StoreError(message, field="database_url", remedy=remedy) from error
