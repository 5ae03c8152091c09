"""Connections and transactions of SQLite and PostgreSQL.

SQLite runs in WAL mode with synchronous=FULL, so a commit survives a power loss. Writers begin with BEGIN IMMEDIATE: a
second one is blocked, and does not fail. PostgreSQL runs in read committed. Driver errors are raised as StoreError.
"""

import re
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Dialect, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError, TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool

from ragbandit.router.storage.sql.connections import Connection, Connections
from ragbandit.router.storage.sql.store_clock import CLOCK, StoreClock
from ragbandit.router.storage.sql.store_file import LOOK_S, StoreFile, is_damaged
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION
from ragbandit.shared.errors import RESTORE, StoreError, missing_package

#: prefix of the name of a PostgreSQL session (`application_name`); the schema of the session's code follows
SESSION: Final = "ragbandit schema "
#: statement that begins a reading transaction of PostgreSQL. SQLite needs no mode: its transactions read one snapshot
_BEGIN_READING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: longest time for which one writer may block another, seconds
LOCK_WAIT_S = 30.0
#: rows per counter on PostgreSQL; processes that change the same row are blocked by each other until a commit
SHARDS = 16
#: Pause between two tries of a writer of SQLite, seconds. SQLite's own pause grows to 100 ms, so a writer might never
#: find the database free while another process writes often.
LOCK_RETRY_S = 0.002
#: Parameters of libpq; DATABASE_URL overrides them. A dead connection is closed within 10 s. Nothing is read from a
#: server that refuses writes: its rows may be out of date, or missing on the server that replaces it.
POSTGRES_OPTIONS = {
    "target_session_attrs": "read-write",
    "connect_timeout": 5,
    "tcp_user_timeout": 5000,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "application_name": f"{SESSION}{SCHEMA_REVISION}",
}
#: parameters of a session of PostgreSQL; the `options` of DATABASE_URL override them
SESSION_OPTIONS = {
    "lock_timeout": int(LOCK_WAIT_S * 1000),
    "statement_timeout": 120_000,
    # The locks of a host that vanished are released within seconds instead of two hours.
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 3,
    "tcp_keepalives_count": 3,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedWrite:
    #: time of the failure (time.monotonic)
    at: float
    reason: str


class Database:
    """Connections of a store. A `with` block of `read()` or `write()` is one transaction."""

    def __init__(self, url: str, *, make: bool = True, read_only: bool = False) -> None:
        """make: whether to create a missing file of SQLite. read_only: whether `write` is refused (SQLite only)."""
        parsed = make_url(url)
        self.url = parsed
        self.failed_write: FailedWrite | None = None
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        #: shard of `counters` that this process changes; random, since all containers may have the same process id
        self.shard = 0 if self.is_sqlite else secrets.randbelow(SHARDS)
        #: file of a SQLite database; None for PostgreSQL, for SQLite in memory, and for a "file:" URI
        self.file: StoreFile | None = None
        options: dict[str, Any] = {"poolclass": NullPool, "pool_reset_on_return": None}
        in_memory = self.is_sqlite and parsed.database in (None, "", ":memory:")
        if self.is_sqlite:
            options |= {"connect_args": {"timeout": LOCK_WAIT_S, "check_same_thread": False}}
            if not in_memory and not str(parsed.database).startswith("file:"):
                self.file = StoreFile(Path(str(parsed.database)), read_only=read_only)
                if make:
                    self.file.make()
        try:
            self.engine: Engine = create_engine(parsed, **options)
        except ImportError as error:
            raise missing_package(error.name or parsed.drivername, extra="postgres", field="database_url") from error
        if self.is_sqlite:
            if self.file is not None:
                connect = self.file.connect
                event.listen(self.engine, "do_connect", lambda _dialect, _record, _args, options: connect(options))
            event.listen(self.engine, "connect", partial(_prepare_sqlite, self.file))
        else:
            event.listen(self.engine, "do_connect", _connect_postgres)
        #: errors that a block turns into StoreError
        self.errors = (SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error)
        self.connections = Connections(self.engine, limit=1) if in_memory else Connections(self.engine)
        #: the clock for times in rows that this process writes
        self.clock = StoreClock(None if self.is_sqlite else self.server_time)

    def read(self) -> "ConnectionBlock":
        """A read-only transaction, which reads one snapshot of the database."""
        return ConnectionBlock(self, begin_statement=_BEGIN_READING)

    def connection(self) -> "ConnectionBlock":
        """A connection for a single statement; takes half the time of `read`."""
        return ConnectionBlock(self, begin_statement=None)

    def server_time(self) -> float:
        """The time of PostgreSQL, seconds since 1970. Raises StoreError."""
        with self.connection() as connection:
            return float(connection.exec_driver_sql(f"SELECT {CLOCK['postgresql']}").scalar_one())

    def write(self, *, foreign_keys: bool = True) -> "ConnectionBlock":
        """A transaction, committed at the end of the block.

        foreign_keys: False turns off SQLite's checks, which scan every table that refers to a deleted row
        """
        if self.file is not None and self.file.read_only:
            remedy = "give this user the right to write it, or copy it to a disk that can be written"
            raise StoreError(f"the database {self.file.path} cannot be written here", remedy=remedy)
        return ConnectionBlock(self, begin_statement="BEGIN", writes=True, foreign_keys=foreign_keys)

    def damages(self, *, most: int) -> list[str]:
        """Descriptions of at most `most` faults that SQLite finds in its file; reads the whole file."""
        if not self.is_sqlite:
            return []
        try:
            with self.read() as connection:
                faults = connection.exec_driver_sql(f"PRAGMA quick_check({most})").scalars().all()
        except StoreError as error:
            if not error.lasting:
                raise
            return [error.message]
        return [" ".join(str(fault).split()) for fault in faults if fault != "ok"]

    def copy_sqlite(self, target: Path) -> None:
        """Copy a database of SQLite into an empty file; others may write meanwhile. Raises StoreError."""
        with self.connection() as connection:
            connection.driver.execute("VACUUM INTO ?", (str(target),))

    def check_file(self, *, every_s: float = 0.0) -> None:
        if self.file is not None:
            self.file.check(every_s=every_s)

    def close(self) -> None:
        """Close all connections. Connections in use are closed at the end of their block."""
        self.connections.close()

    def failure(self, error: Exception, *, writes: bool, is_known: bool = True) -> StoreError:
        """The StoreError for an error of `errors`. is_known: whether it is certain that nothing was written."""
        self.check_file(every_s=0.001)  # a missing file can be the cause of various errors
        driver = self.engine.dialect.loaded_dbapi
        cause = getattr(error, "orig", None) or error  # some calls raise the driver's errors without SQLAlchemy's
        reason = str(cause).strip().partition("\n")[0] or type(error).__name__
        # The written row caused errors of other classes.
        if writes and isinstance(cause, (PoolTimeout, driver.OperationalError, driver.InternalError)):
            self.failed_write = FailedWrite(at=time.monotonic(), reason=reason)
        damaged = is_damaged(cause)
        trouble = "check that the database is reachable, takes writes and has disk space"
        if re.search(r"invalid (connection option|\S+ value)|bad value for", reason):  # words of libpq and psycopg
            trouble = "correct the options in DATABASE_URL: it takes those of libpq"
        elif "startup parameter" in reason:
            trouble = "let DATABASE_URL lead to PostgreSQL itself, not to a pooler, or see PgBouncer in docs/deploy.md"
        remedy = RESTORE if damaged else f"{trouble}, then try again" + ("" if is_known else " with the same id")
        written = "nothing was written" if is_known else "it is not known whether this was written"
        return StoreError(f"the database failed: {reason}", remedy=f"{written}; {remedy}", lasting=damaged)


class ConnectionBlock:
    """A `with` block that uses a connection, in a transaction unless `begin` is None.

    begin: statement that begins the transaction in PostgreSQL. foreign_keys: see `Database.write`
    """

    __slots__ = ("_begin", "_connection", "_database", "_foreign_keys", "_writes")

    def __init__(
        self, database: Database, *, begin_statement: str | None, writes: bool = False, foreign_keys: bool = True
    ) -> None:
        self._database, self._begin, self._writes, self._foreign_keys = database, begin_statement, writes, foreign_keys

    def __enter__(self) -> Connection:
        database = self._database
        if database.file is not None and not self._writes:
            database.file.check(every_s=LOOK_S)
        try:
            connection = self._connection = database.connections.take()
            try:
                if self._begin is not None:
                    if not connection.is_sqlite:
                        connection.driver.send(self._begin)
                    elif self._writes:
                        self._begin_writing(connection)
                    else:
                        connection.driver.execute("BEGIN")
            except BaseException as error:
                database.connections.discard(connection, error=error)
                raise
        except database.errors as error:
            raise database.failure(error, writes=self._writes) from error
        return connection

    def _begin_writing(self, connection: Connection) -> None:
        if connection.foreign_keys != self._foreign_keys:  # only then: after this PRAGMA statements are prepared again
            connection.driver.execute(f"PRAGMA foreign_keys={'ON' if self._foreign_keys else 'OFF'}")
            connection.foreign_keys = self._foreign_keys
        _wait_for_lock(connection.driver, "BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        database, connection = self._database, self._connection
        try:
            if error is not None or self._begin is None:
                connection.cancel()
            else:
                if database.file is not None and self._writes:
                    database.file.check()  # before the commit: rows in a deleted or moved file would be lost
                connection.end()
        except BaseException as failed:
            # A server may have committed before its connection was lost.
            is_known = connection.is_sqlite or not self._writes or not connection.driver.closed
            database.connections.discard(connection, error=error or failed)  # rolls back, unless it is committed
            if error is None:
                if isinstance(failed, database.errors):
                    raise database.failure(failed, writes=self._writes, is_known=is_known) from failed
                raise
        else:
            database.connections.give_back(connection, error=error)
        if isinstance(error, database.errors):
            raise database.failure(error, writes=self._writes) from error


def overwrite_freed(connection: Connection) -> None:
    """Let SQLite overwrite everything that this transaction deletes, so that no text stays in the file's free pages."""
    if connection.is_sqlite and not connection.overwrites:
        connection.overwrites = True
        connection.driver.execute("PRAGMA secure_delete=ON")


def _connect_postgres(_dialect: Dialect, _record: object, args: Sequence[Any], parameters: dict[str, Any]) -> Any:
    """Connect with our parameters and the parameters of DATABASE_URL, which take precedence."""
    from ragbandit.router.storage.sql.pipelined import PipelinedConnection  # psycopg is an extra

    defaults = " ".join(f"-c {name}={value}" for name, value in SESSION_OPTIONS.items())
    parameters = {**POSTGRES_OPTIONS, **parameters, "options": f"{defaults} {parameters.get('options', '')}".strip()}
    threshold = str(parameters.get("prepare_threshold", 5))  # "none" turns it off, for proxies that lose statements
    parameters["prepare_threshold"] = int(threshold) if threshold.isdigit() else None
    return PipelinedConnection.connect(*args, autocommit=True, **parameters)


def _prepare_sqlite(file: StoreFile | None, connection: Any, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is sent by ConnectionBlock
    if file is None or not file.read_only:
        # SQLite itself fails at once if several connections switch a new file to WAL at the same time.
        _wait_for_lock(connection, "PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    if file is not None:
        file.check()  # the path may lead to another file by now


def _wait_for_lock(driver: sqlite3.Connection, statement: str) -> None:
    """Run `statement`; try again for LOCK_WAIT_S if the file is locked. Raises the driver's errors."""
    give_up = time.monotonic() + LOCK_WAIT_S
    driver.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                driver.execute(statement)
                return
            except sqlite3.OperationalError as error:
                # The higher bits of the code are details.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                    raise
            time.sleep(LOCK_RETRY_S)
    finally:
        driver.execute(f"PRAGMA busy_timeout={int(1000 * LOCK_WAIT_S)}")
