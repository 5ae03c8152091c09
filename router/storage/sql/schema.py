"""The schema of a database: its revision, whether this release can use it, and the migrations.

Several releases may use one database while hosts are upgraded one by one. Each migration declares in `oldest_code` the
oldest schema whose code still works after the migration. The largest of these values is `alembic_version.code_from`,
which a release reads if the schema is newer than its own. The name of a PostgreSQL session contains the schema of its
code, so that a migration is refused while processes are connected whose code would not work after it.
"""

import time
from collections.abc import Iterator
from functools import cache
from typing import Final

from sqlalchemy import Table, UniqueConstraint, inspect, text

from ragbandit.router.storage.sql import tables
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import SESSION, Database
from ragbandit.router.storage.sql.tables import (
    FIRST_REVISION,
    FORMER_FLAGS,
    OLDEST_REVISION,
    SCHEMA_REVISION,
    schema_at,
)
from ragbandit.shared.errors import StoreError

SCRIPTS: Final = "ragbandit:migrations"
#: revision of a database into which a store is still being moved (`move.py`); `code_from` then identifies the store
MOVING: Final = "moving"
#: starts a long transaction of PostgreSQL; an advisory lock lets one migration or batch of a move run at a time
RUN_ALONE: Final = text(f"SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({int.from_bytes(b'ragbandi')})")
#: remedy for a schema that is newer than this code
_INSTALL: Final = "install the version of ragbandit that made it, or a newer one"
#: time for which a migration tries again if other transactions use its tables, and pause between tries, seconds
DDL_WAIT_S, DDL_PAUSE_S = 120.0, 0.5


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
        time.sleep(DDL_PAUSE_S)  # lets transactions run that the migration's locks blocked


def _migrate(connection: Connection, *, revision: str, pre: bool) -> str:
    current = revision_of(connection)
    if current is not None and current > SCHEMA_REVISION and _may_use(connection):
        return current
    if not connection.is_sqlite:
        _yield_to_requests(connection)
    if current is not None:
        check_tables(connection, revision=current)
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
    oldest = code_from or max(oldest for step, oldest in migration_steps().items() if step <= revision)
    row = {"revision": revision, "oldest": oldest}
    connection.execute(text("UPDATE alembic_version SET version_num = :revision, code_from = :oldest"), row)


def check_schema(database: Database, *, make: bool = True) -> str:
    """Returns the schema's revision. Raises StoreError if this release cannot use it. make: set up an empty SQLite."""
    with database.read() as connection:
        current = revision_of(connection)
        empty = not inspect(connection).get_table_names()
        newer = current is not None and current > SCHEMA_REVISION
        if current is not None and (_may_use(connection) if newer else current >= OLDEST_REVISION):
            check_tables(connection, revision=current)
            return current
    if empty and database.is_sqlite and make:
        return migrate(database)
    present = "no schema" if current is None else f"schema {current}"
    oldest = "" if OLDEST_REVISION == SCHEMA_REVISION else f"{OLDEST_REVISION} to "
    message = f"the database has {present}, this version needs {oldest}{SCHEMA_REVISION}"
    remedy = _INSTALL if newer else "run: `ragbandit migrate`"
    raise StoreError(message, field="database_url", remedy=remedy)


def check_tables(connection: Connection, *, revision: str) -> None:
    """Raise StoreError if a table differs from the revision's declaration: in a column, its nullability, or a key.

    Types are not compared, further tables and indexes are allowed, and so are further columns of a newer schema.
    """
    fault = next(_differences(connection, revision=revision), None)
    if fault is None:
        return
    message = f"the database has schema {revision}, but {fault}: an unreleased version of ragbandit made it"
    remedy = "export its data with that version (`ragbandit data export FILE`), and import it into an empty database"
    raise StoreError(message, field="database_url", remedy=remedy)


def _differences(connection: Connection, *, revision: str) -> Iterator[str]:
    declared, found = schema_at(revision).tables, inspect(connection)
    is_newer = revision > tables.SCHEMA_REVISION
    names = list(declared)
    columns, keys = found.get_multi_columns(filter_names=names), found.get_multi_pk_constraint(filter_names=names)
    unique = found.get_multi_unique_constraints(filter_names=names)
    for name, table in declared.items():
        place = (None, name)
        if place not in columns:
            yield f"the table {name} is missing"
            continue
        present = {column["name"]: bool(column["nullable"]) for column in columns[place]}
        expected = {column.name: bool(column.nullable) for column in table.columns if not column.system}
        for column, nullable in expected.items():
            if column not in present:
                yield f"the table {name} lacks the column {column}"
            elif present[column] != nullable:
                yield f"the column {name}.{column} {'must be' if present[column] else 'may not be'} NOT NULL"
        further = sorted(present.keys() - expected.keys() - {*(FORMER_FLAGS if name == "decisions" else ())})
        if further and not is_newer:
            yield f"the table {name} has the column {further[0]}"
        present_keys = [tuple(keys[place]["constrained_columns"]), *(tuple(u["column_names"]) for u in unique[place])]
        for key in _keys_of(table):
            if key not in present_keys:
                yield f"the table {name} has no unique key {', '.join(key)}"


def _keys_of(table: Table) -> Iterator[tuple[str, ...]]:
    yield tuple(column.name for column in table.primary_key.columns)
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield tuple(column.name for column in constraint.columns)


def wait_for_schema(database: Database, *, seconds: float) -> str:
    """Wait up to `seconds` until this release can use the schema. Returns its revision. Raises StoreError."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            return check_schema(database, make=False)
        except StoreError:
            if time.monotonic() >= give_up:
                raise
        time.sleep(min(1.0, max(0.0, give_up - time.monotonic())))


def revision_of(connection: Connection) -> str | None:
    """The schema's revision; None without a schema of ours. Raises StoreError as `schema_version`, or if MOVING."""
    revision, _ = schema_version(connection)
    if revision == MOVING:
        remedy = "run the same `ragbandit migrate --from SQLITE_URL` again; it continues"
        message = "the database has only a part of a store, since a move from SQLite has not ended"
        raise StoreError(message, field="database_url", remedy=remedy)
    return revision


def schema_version(connection: Connection) -> tuple[str | None, str | None]:
    """Returns (revision or MOVING, `code_from`), or (None, None). Raises StoreError for a schema of no release."""
    exists = inspect(connection).has_table("alembic_version")
    row = connection.execute(text("SELECT * FROM alembic_version")).mappings().one_or_none() if exists else None
    if row is None:
        return None, None
    if "code_from" not in row or row["version_num"] < FIRST_REVISION:
        message = f"the database has schema {row['version_num']}, which no release of RagBandit made"
        remedy = "use an empty database; what made this one may export its data (`ragbandit data export FILE`)"
        raise StoreError(message, field="database_url", remedy=remedy)
    return row["version_num"], row["code_from"]


@cache
def migration_steps() -> dict[str, str]:
    """Revision of each migration -> oldest schema whose code still works after the migration; oldest revision first."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    return {script.revision: script.module.oldest_code for script in reversed(list(scripts))}


def _pending(current: str | None) -> dict[str, str]:
    return {revision: oldest for revision, oldest in migration_steps().items() if current is None or revision > current}


def _last_safe(current: str, *, needed: str) -> str:
    """The newest revision on which code of schema `current` still works. Raises StoreError if it is below `needed`."""
    pending = _pending(current)
    breaks = next((revision for revision, oldest in pending.items() if oldest > current), None)
    last = max((revision for revision in pending if breaks is None or revision < breaks), default=current)
    if breaks is not None and last < needed:
        serving = f"while processes of schema {current} serve: it takes code of schema {pending[breaks]} or newer"
        message = f"this release needs schema {needed}, and migration {breaks} on the way cannot be run {serving}"
        remedy = "upgrade by way of a release between the two, or stop all processes and run: `ragbandit migrate`"
        raise StoreError(message, field="database_url", remedy=remedy)
    return last


def _check_connected(connection: Connection, *, current: str | None) -> None:
    """Raises StoreError if processes are connected to PostgreSQL whose code would not work after the migrations."""
    pending = _pending(current)
    if connection.is_sqlite or not pending:
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
    _, oldest = schema_version(connection)
    return oldest is not None and oldest <= SCHEMA_REVISION


def _yield_to_requests(connection: Connection) -> None:
    """Let this transaction of PostgreSQL give up a lock sooner than requests do. Blocks until other migrations end."""
    setting = text("SELECT setting FROM pg_settings WHERE name = 'deadlock_timeout'")
    timeout_ms = connection.execute(setting).scalar_one()
    # Shorter than deadlock_timeout, so that in a deadlock the migration gives up, never a request.
    connection.execute(text(f"SET LOCAL lock_timeout = {max(1, int(float(timeout_ms) * 0.6))}"))
    connection.execute(RUN_ALONE)
