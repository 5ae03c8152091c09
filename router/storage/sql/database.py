"""Connections and transactions of SQLite and PostgreSQL, and the migrations of the schema.

SQLite runs in WAL mode with synchronous=FULL, so a commit survives a power loss. Writers begin with BEGIN IMMEDIATE, so
they queue instead of failing. PostgreSQL runs in read committed. Driver errors are raised as StoreError.

Several releases may use one database while hosts are upgraded one by one. Each migration declares in `oldest_code` the
oldest schema whose code still works after the migration. The largest of these values is `alembic_version.code_from`,
which a release reads if the schema is newer than its own. The name of a PostgreSQL session contains the schema of its
code, so that a migration is refused while processes are connected whose code would not work after it.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InternalError, OperationalError, SQLAlchemyError, TimeoutError as PoolTimeout
from sqlalchemy.pool import StaticPool

from ragbandit.router.storage.sql.store_file import LOOK_S, StoreFile, is_damaged
from ragbandit.router.storage.sql.tables import FIRST_REVISION, OLDEST_REVISION, SCHEMA_REVISION
from ragbandit.shared.errors import RESTORE, StoreError, missing_package

SCRIPTS: Final = "ragbandit:migrations"
#: revision of a database into which a store is still being moved (`move.py`); `code_from` then identifies the store
MOVING: Final = "moving"
#: starts a long transaction of PostgreSQL; an advisory lock lets one migration or batch of a move run at a time
RUN_ALONE: Final = text(f"SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({int.from_bytes(b'ragbandi')})")
#: prefix of the name of a PostgreSQL session (`application_name`); the schema of the session's code follows
SESSION: Final = "ragbandit schema "
#: remedy for a schema that is newer than this code
_INSTALL: Final = "install the version of ragbandit that made it, or a newer one"
#: errors raised if the database cannot write; other errors are caused by the written row
_UNAVAILABLE: Final = OperationalError, InternalError, PoolTimeout, sqlite3.OperationalError, sqlite3.InternalError
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
#: time for which a migration tries again if other transactions use its tables, and pause between tries, seconds
DDL_WAIT_S, DDL_PAUSE_S = 120.0, 0.5


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
        options: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 8, "max_overflow": 8, "pool_timeout": 30}
        if self.is_sqlite:
            options = {"connect_args": {"timeout": LOCK_WAIT_S, "check_same_thread": False}}
            if parsed.database in (None, "", ":memory:"):
                options["poolclass"] = StaticPool
            elif not str(parsed.database).startswith("file:"):
                self.file = StoreFile(Path(str(parsed.database)), read_only=read_only)
                options["pool_use_lifo"] = True  # the connection that wrote last has the newest pages in its cache
                if make:
                    self.file.make()
        try:
            self.engine: Engine = create_engine(parsed, **options)
        except ImportError as error:
            raise missing_package(error.name or parsed.drivername, extra="postgres", field="database_url") from error
        self._reader = self._looker = self.engine
        self._writer = self.engine.execution_options(ragbandit_write="ON")
        if self.is_sqlite:  # needs no isolation level: a read transaction of SQLite always sees one state
            if self.file is not None:
                connect = self.file.connect
                event.listen(self.engine, "do_connect", lambda _dialect, _record, _args, options: connect(options))
            event.listen(self.engine, "connect", partial(_prepare_sqlite, self.file))
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            self._looker = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            event.listen(self.engine, "do_connect", _connect_postgres)
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
        self.engine.dispose()

    @contextmanager
    def _wrapped(self, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error) as error:
            self.check_file(every_s=0.001)  # a missing file can be the cause of various errors
            cause = getattr(error, "orig", None) or error  # some calls raise the driver's errors directly
            reason = str(cause).strip().partition("\n")[0] or type(error).__name__
            if writes and isinstance(error, _UNAVAILABLE):
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


def _connect_postgres(_dialect: Dialect, _record: object, _args: object, parameters: dict[str, Any]) -> None:
    """Add our parameters to those of DATABASE_URL, which take precedence."""
    defaults = " ".join(f"-c {name}={value}" for name, value in SESSION_OPTIONS.items())
    options = f"{defaults} {parameters.get('options', '')}".strip()
    parameters.update({**POSTGRES_OPTIONS, **parameters, "options": options})


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
    if foreign_keys is None:
        connection.exec_driver_sql("BEGIN")
        return
    driver: Any = connection.connection.driver_connection
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


def migrate(database: Database, *, revision: str = "head", pre: bool = False) -> str:
    """Migrate the schema to `revision` and return the schema's revision. Raises StoreError; then nothing is changed.

    A newer schema that this release may use is left unchanged.

    pre: whether to run only migrations after which processes of the present schema still work. If False, all migrations
        are run, but refused while processes are connected to PostgreSQL that would not work after them
    """
    give_up = time.monotonic() + DDL_WAIT_S
    while True:
        try:
            with database.write() as connection:
                return _migrate(connection, revision=revision, pre=pre)
        except StoreError as error:
            cause = getattr(error.__cause__, "orig", None)
            is_lock_error = getattr(cause, "sqlstate", None) in ("55P03", "40P01")  # lock timeout, deadlock
            if time.monotonic() > give_up or not is_lock_error:
                raise
        time.sleep(DDL_PAUSE_S)  # lets transactions go first that wait for the same tables


def _migrate(connection: Connection, *, revision: str, pre: bool) -> str:
    current = revision_of(connection)
    if current is not None and current > SCHEMA_REVISION and _may_use(connection):
        return current
    if connection.dialect.name == "postgresql":
        _give_way_first(connection)
    if pre and current is not None:
        revision = _last_safe(current, needed=OLDEST_REVISION)
    elif not pre:
        _check_connected(connection, current=current)
    upgrade(connection, revision=revision)
    return revision_of(connection) or ""


def upgrade(connection: Connection, *, revision: str) -> None:
    """Run migrations in the caller's transaction. Raises StoreError."""
    from alembic import command  # imported here, since most processes never migrate
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        message = f"the database cannot be migrated: {error}"
        raise StoreError(message, field="database_url", remedy=_INSTALL) from error
    current = revision_of(connection)
    if current:
        store_revision(connection, current)


def store_revision(connection: Connection, revision: str, *, code_from: str | None = None) -> None:
    oldest = code_from or max(oldest for step, oldest in steps().items() if step <= revision)
    row = {"revision": revision, "oldest": oldest}
    connection.execute(text("UPDATE alembic_version SET version_num = :revision, code_from = :oldest"), row)


def check_schema(database: Database, *, make: bool = True) -> str:
    """Returns the schema's revision. Raises StoreError if this release cannot use it. make: set up an empty SQLite."""
    with database.read() as connection:
        current = revision_of(connection)
        empty = not inspect(connection).get_table_names()
        newer = current is not None and current > SCHEMA_REVISION
        if current is not None and (_may_use(connection) if newer else current >= OLDEST_REVISION):
            return current
    if empty and database.is_sqlite and make:
        return migrate(database)
    present = "no schema" if current is None else f"schema {current}"
    oldest = "" if OLDEST_REVISION == SCHEMA_REVISION else f"{OLDEST_REVISION} to "
    message = f"the database has {present}, this version needs {oldest}{SCHEMA_REVISION}"
    remedy = _INSTALL if newer else "run: ragbandit migrate"
    raise StoreError(message, field="database_url", remedy=remedy)


def wait_for_schema(database: Database, *, seconds: float) -> str:
    """Wait until this release can use the database's schema; returns its revision. Raises the last StoreError."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            return check_schema(database, make=False)
        except StoreError:
            if time.monotonic() >= give_up:
                raise
        time.sleep(min(1.0, max(0.0, give_up - time.monotonic())))


def revision_of(connection: Connection) -> str | None:
    """The schema's revision; None without a schema of this product. Raises StoreError as `version_of`, or if MOVING."""
    revision, _ = version_of(connection)
    if revision == MOVING:
        remedy = "run the same `ragbandit migrate --from SQLITE_URL` again; it continues"
        message = "the database has only a part of a store, since a move from SQLite has not ended"
        raise StoreError(message, field="database_url", remedy=remedy)
    return revision


def version_of(connection: Connection) -> tuple[str | None, str | None]:
    """Returns (revision or MOVING, `code_from`), or (None, None). Raises StoreError for a schema of no release."""
    exists = inspect(connection).has_table("alembic_version")
    row = connection.execute(text("SELECT * FROM alembic_version")).mappings().one_or_none() if exists else None
    if row is None:
        return None, None
    if "code_from" not in row or row["version_num"] < FIRST_REVISION:
        message = f"the database has schema {row['version_num']}, which no release of RagBandit made"
        remedy = "use an empty database; what made this one may export its data (`ragbandit data export`)"
        raise StoreError(message, field="database_url", remedy=remedy)
    return row["version_num"], row["code_from"]


@cache
def steps() -> dict[str, str]:
    """Revision of each migration -> oldest schema whose code still works after the migration; oldest revision first."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    return {script.revision: script.module.oldest_code for script in reversed(list(scripts))}


def _pending(current: str | None) -> dict[str, str]:
    return {revision: oldest for revision, oldest in steps().items() if current is None or revision > current}


def _last_safe(current: str, *, needed: str) -> str:
    """The newest revision on which code of schema `current` still works. Raises StoreError if it is below `needed`."""
    pending = _pending(current)
    breaks = next((revision for revision, oldest in pending.items() if oldest > current), None)
    last = max((revision for revision in pending if breaks is None or revision < breaks), default=current)
    if breaks is not None and last < needed:
        serving = f"while processes of schema {current} serve: it takes code of schema {pending[breaks]} or newer"
        message = f"this release needs schema {needed}, and migration {breaks} on the way cannot be run {serving}"
        remedy = "upgrade by way of a release between the two, or stop all processes and run: ragbandit migrate"
        raise StoreError(message, field="database_url", remedy=remedy)
    return last


def _check_connected(connection: Connection, *, current: str | None) -> None:
    """Raises StoreError if processes are connected to PostgreSQL whose code would not work after the migrations."""
    pending = _pending(current)
    if connection.dialect.name != "postgresql" or not pending:
        return
    needed = max(pending.values())
    query = text(
        "SELECT DISTINCT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE :ours"
    )
    names = connection.execute(query, {"ours": f"{SESSION}%"}).scalars()
    schemas = (str(name).removeprefix(SESSION) for name in names)
    older = sorted(schema for schema in schemas if schema < needed)
    if older:
        message = f"processes of schema {', '.join(older)} use the database, and a migration takes {needed} or newer"
        remedy = "upgrade or stop them first; `ragbandit migrate --pre` runs what they survive"
        raise StoreError(message, field="database_url", remedy=remedy)


def _may_use(connection: Connection) -> bool:
    """Whether this code may use a database with a newer schema."""
    _, oldest = version_of(connection)
    return oldest is not None and oldest <= SCHEMA_REVISION


def _give_way_first(connection: Connection) -> None:
    """Let this transaction of PostgreSQL give up a lock sooner than requests do. Waits for other migrations to end."""
    setting = text("SELECT setting FROM pg_settings WHERE name = 'deadlock_timeout'")
    timeout_ms = connection.execute(setting).scalar_one()
    # Shorter than deadlock_timeout, so that in a deadlock the migration gives up, never a request.
    connection.execute(text(f"SET LOCAL lock_timeout = {max(1, int(float(timeout_ms) * 0.6))}"))
    connection.execute(RUN_ALONE)
