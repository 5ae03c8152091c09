"""Connections and transactions of SQLite and PostgreSQL.

SQLite runs in WAL mode with synchronous=FULL, so a commit survives a power loss. Writers begin with BEGIN IMMEDIATE, so
they queue instead of failing. PostgreSQL runs in read committed. Driver errors are raised as StoreError.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError, TimeoutError as PoolTimeout
from sqlalchemy.pool import StaticPool

from ragbandit.router.storage.sql.store_file import LOOK_S, StoreFile, is_damaged
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION
from ragbandit.shared.errors import RESTORE, StoreError, missing_package

#: prefix of the name of a PostgreSQL session (`application_name`); the schema of the session's code follows
SESSION: Final = "ragbandit schema "
#: begin of a transaction of PostgreSQL that reads; SQLite needs no mode, since it always sees one state
_BEGIN_READING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: longest wait of a writer for another writer, seconds
LOCK_WAIT_S = 30.0
#: rows per counter on PostgreSQL; processes that change the same row wait for each other's commits
SHARDS = 16
#: Pause between two tries of a writer of SQLite, seconds. SQLite's own pause grows to 100 ms, so a writer might never
#: find the database free while another process writes often.
LOCK_RETRY_S = 0.002
#: parameters of libpq, which close a dead connection within 10 s; DATABASE_URL overrides them
POSTGRES_OPTIONS = {
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
    """A connection pool. A `with` block of `read()` or `write()` is one transaction."""

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
        # The connection that was used last has prepared the most statements, and has the newest pages in its cache.
        options: dict[str, Any] = {"pool_use_lifo": True, "pool_pre_ping": True, "pool_size": 8, "max_overflow": 8}
        if self.is_sqlite:
            options = {"connect_args": {"timeout": LOCK_WAIT_S, "check_same_thread": False}}
            if parsed.database in (None, "", ":memory:"):
                options["poolclass"] = StaticPool
            elif not str(parsed.database).startswith("file:"):
                self.file = StoreFile(Path(str(parsed.database)), read_only=read_only)
                options["pool_use_lifo"] = True
                if make:
                    self.file.make()
        try:
            self.engine: Engine = create_engine(parsed, **options)
        except ImportError as error:
            raise missing_package(error.name or parsed.drivername, extra="postgres", field="database_url") from error
        self._reader = self.engine.execution_options(ragbandit_begin=_BEGIN_READING)
        self._looker = self.engine.execution_options(ragbandit_begin=None)
        self._writer = self.engine.execution_options(ragbandit_write="ON")
        if self.is_sqlite:
            if self.file is not None:
                connect = self.file.connect
                event.listen(self.engine, "do_connect", lambda _dialect, _record, _args, options: connect(options))
            event.listen(self.engine, "connect", partial(_prepare_sqlite, self.file))
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            event.listen(self.engine, "do_connect", _connect_postgres)
            event.listen(self.engine, "begin", _begin_postgres)
            setattr(self.engine.dialect, "do_ping", _is_open)  # noqa: B010 - mypy refuses to assign to a method

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only transaction that sees one state."""
        self.check_file(every_s=LOOK_S)
        with self._wrapped(), self._reader.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def look(self) -> Iterator[Connection]:
        """A connection for a single statement; takes half the time of `read`."""
        self.check_file(every_s=LOOK_S)
        with self._wrapped(), self._looker.connect() as connection:
            yield connection

    @contextmanager
    def write(self, *, foreign_keys: bool = True) -> Iterator[Connection]:
        """A transaction, committed at the end of the block.

        foreign_keys: if False, SQLite does not check them: it would scan every table that refers to a deleted row.
        """
        if self.file is not None and self.file.read_only:
            remedy = "give this user the right to write it, or copy it to a disk that can be written"
            raise StoreError(f"the database {self.file.path} cannot be written here", remedy=remedy)
        writer = self._writer
        if not foreign_keys:
            writer = self.engine.execution_options(ragbandit_write="OFF")
        with self._wrapped(writes=True), writer.connect() as connection, connection.begin():
            yield connection
            self.check_file()  # before the commit: rows in a deleted or moved file would be lost

    def damages(self, *, most: int) -> list[str]:
        """At most `most` damaged places that SQLite finds in its file; reads the whole file."""
        if not self.is_sqlite:
            return []
        try:
            with self.read() as connection:
                places = connection.exec_driver_sql(f"PRAGMA quick_check({most})").scalars().all()
        except StoreError as error:
            if not error.lasting:
                raise
            return [error.message]
        return [" ".join(str(place).split()) for place in places if place != "ok"]

    def copy_sqlite(self, target: Path) -> None:
        """Copy a database of SQLite into an empty file; others may write meanwhile. Raises StoreError."""
        with self._wrapped(), self.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection  # VACUUM fails in a transaction of SQLAlchemy
            driver.execute("VACUUM INTO ?", (str(target),))

    def check_file(self, *, every_s: float = 0.0) -> None:
        if self.file is not None:
            self.file.check(every_s=every_s)

    def close(self) -> None:
        """Close all connections; those in use are closed when they are returned."""
        pool = self.engine.pool
        self.engine.dispose()
        event.listen(pool, "checkin", lambda driver, _record: driver.close())

    @contextmanager
    def _wrapped(self, *, writes: bool = False) -> Iterator[None]:
        driver = self.engine.dialect.loaded_dbapi
        try:
            yield
        except (SQLAlchemyError, driver.Error) as error:
            self.check_file(every_s=0.001)  # a missing file can be the cause of various errors
            cause = getattr(error, "orig", None) or error  # some calls raise the driver's errors directly
            reason = str(cause).strip().partition("\n")[0] or type(error).__name__
            # Errors of other classes are caused by the written row.
            if writes and isinstance(cause, (PoolTimeout, driver.OperationalError, driver.InternalError)):
                self.failed_write = FailedWrite(at=time.monotonic(), reason=reason)
            damaged = is_damaged(cause)
            remedy = RESTORE if damaged else "check that the database is reachable and has disk space, then try again"
            message = f"the database failed: {reason}"
            raise StoreError(message, remedy=f"nothing was written; {remedy}", lasting=damaged) from error


def overwrite_freed(connection: Connection) -> None:
    """Let SQLite overwrite everything that this transaction deletes, so that no text stays in the file's free pages."""
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA secure_delete=ON")


def _connect_postgres(_dialect: Dialect, _record: object, args: Sequence[Any], parameters: dict[str, Any]) -> Any:
    """Connect with our parameters and those of DATABASE_URL, which take precedence."""
    from ragbandit.router.storage.sql.pipelined import PipelinedConnection  # psycopg is an extra

    defaults = " ".join(f"-c {name}={value}" for name, value in SESSION_OPTIONS.items())
    parameters = {**POSTGRES_OPTIONS, **parameters, "options": f"{defaults} {parameters.get('options', '')}".strip()}
    threshold = str(parameters.get("prepare_threshold", 5))  # none: for proxies that keep no prepared statements
    parameters["prepare_threshold"] = int(threshold) if threshold.isdigit() else None
    return PipelinedConnection.connect(*args, autocommit=True, **parameters)


def _begin_postgres(connection: Connection) -> None:
    statement = connection.get_execution_options().get("ragbandit_begin", "BEGIN")
    if statement is not None:
        driver: Any = connection.connection.dbapi_connection
        driver.send(statement)


def _is_open(driver: Any) -> bool:
    """Whether the server has not closed this connection; takes no roundtrip, unlike a ping. Raises psycopg's errors."""
    for _ in range(2):  # the first call may read the server's last message, the second then reads the end
        driver.pgconn.consume_input()
    return not driver.closed


def _prepare_sqlite(file: StoreFile | None, connection: Any, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is sent by _begin_sqlite
    if file is None or not file.read_only:
        # SQLite itself does not wait if several connections switch a new file to WAL at the same time.
        _wait_for_lock(connection, "PRAGMA journal_mode=WAL", last_try=connection.execute)
    connection.execute("PRAGMA synchronous=FULL")
    if file is not None:
        file.check()  # the path may lead to another file by now


def _begin_sqlite(connection: Connection) -> None:
    foreign_keys = connection.get_execution_options().get("ragbandit_write")
    driver: Any = connection.connection.dbapi_connection
    if foreign_keys is None:
        driver.execute("BEGIN")
        return
    if connection.info.get("foreign_keys") != foreign_keys:  # this PRAGMA lets SQLite prepare all statements again
        driver.execute(f"PRAGMA foreign_keys={foreign_keys}")
        connection.info["foreign_keys"] = foreign_keys
    _wait_for_lock(driver, "BEGIN IMMEDIATE", last_try=connection.exec_driver_sql)


def _wait_for_lock(driver: Any, statement: str, *, last_try: Callable[[str], object]) -> None:
    """Run `statement`; retry for LOCK_WAIT_S if the file is locked, then run `last_try`, which raises the error."""
    give_up = time.monotonic() + LOCK_WAIT_S
    driver.execute("PRAGMA busy_timeout=0")
    try:
        while time.monotonic() < give_up:
            try:
                driver.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # higher bits are an extended code
                    break
            time.sleep(LOCK_RETRY_S)
        last_try(statement)
    finally:
        driver.execute(f"PRAGMA busy_timeout={int(1000 * LOCK_WAIT_S)}")
