"""Schema window: which releases may use one database at the same time, so that hosts are upgraded one by one.

Each migration names in `oldest_code` the oldest schema whose code goes on while the migration runs and after it. One
that only adds keeps the value of the one before; one that removes or renames what code reads, or that old code could
not write beside, raises it. A database carries the value of its newest migration beside its revision, as `code_from`.
So a release may meet a newer schema: it looks there whether it may stay, since it cannot know later migrations.

The sessions of PostgreSQL are named by the schema of their code, so that a migration sees whom it would break.
"""

from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, inspect, text

from ragbandit.router.storage.sql.tables import SCHEMA_REVISION
from ragbandit.shared.errors import BEFORE_1_0, StoreError

#: where Alembic finds the migrations
SCRIPTS: Final = "ragbandit:migrations"
#: how the sessions of our processes are named in pg_stat_activity; the schema of their code follows
SESSION: Final = "ragbandit schema "
#: PostgreSQL: a lock did not come in time, or a deadlock was broken here
_GAVE_WAY: Final = frozenset({"55P03", "40P01"})
#: longest wait of a migration for one lock, as a share of the time after which PostgreSQL looks for deadlocks: the
#: migration is always the first to give way, never a request
_BEFORE_DEADLOCK: Final = 0.6
#: key of the advisory lock of migrations: "ragbandi" as a number
_ONE_AT_A_TIME: Final = int.from_bytes(b"ragbandi")


def session_name(revision: str) -> str:
    """The application name of sessions of code of this schema."""
    return f"{SESSION}{revision}"


@cache
def steps() -> dict[str, str]:
    """Every migration of this release, oldest first: its revision -> the oldest schema whose code survives it."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    return {script.revision: script.module.oldest_code for script in reversed(list(scripts))}


def _to_come(current: str | None) -> dict[str, str]:
    return {revision: oldest for revision, oldest in steps().items() if current is None or revision > current}


def last_safe(current: str, *, needed: str) -> str:
    """The newest migration up to which code of the schema `current` survives; `current` where it survives no more.

    Raises StoreError where that is before `needed`, the schema without which this release cannot start.
    """
    last, to_come = current, _to_come(current)
    breaks = next((revision for revision, oldest in to_come.items() if oldest > current), None)
    for revision in to_come:
        if revision == breaks:
            break
        last = revision
    if breaks is not None and last < needed:
        raise StoreError(
            f"this release needs schema {needed}, and migration {breaks} on the way cannot be run while processes of "
            f"schema {current} serve: it takes code of schema {to_come[breaks]} or newer",
            field="database_url",
            remedy="upgrade by way of a release between the two, or stop all processes and run: ragbandit migrate",
        )
    return last


def check_connected(connection: Connection, *, current: str | None) -> None:
    """Refuse migrations that processes which are connected to PostgreSQL now would not survive. Raises StoreError.

    Processes on SQLite are not seen.
    """
    to_come = _to_come(current)
    if connection.dialect.name != "postgresql" or not to_come:
        return
    needed = max(to_come.values())
    query = text(
        "SELECT DISTINCT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE :ours"
    )
    names = connection.execute(query, {"ours": f"{SESSION}%"}).scalars()
    older = sorted(schema for name in names if (schema := str(name).removeprefix(SESSION)) < needed)
    if older:
        raise StoreError(
            f"processes of schema {', '.join(older)} use the database, and what is to come takes {needed} or newer",
            field="database_url",
            remedy="upgrade or stop them first; `ragbandit migrate --pre` runs what they survive",
        )


def check_made_since_1_0(connection: Connection) -> None:
    """Refuse a database of version 0.x, whose revisions count other migrations. Raises StoreError."""
    if "code_from" not in {column["name"] for column in inspect(connection).get_columns("alembic_version")}:
        raise StoreError(
            f"this database cannot be used: {BEFORE_1_0}",
            field="database_url",
            remedy="begin with an empty database, and import what was exported there",
        )


def may_use(connection: Connection) -> bool:
    """Whether the database, whose schema is newer than this code, says that this code may still use it."""
    oldest = connection.execute(text("SELECT code_from FROM alembic_version")).scalar_one_or_none()
    return oldest is not None and oldest <= SCHEMA_REVISION


def write_code_from(connection: Connection, *, revision: str) -> None:
    """Write down which code may use the schema that the database has now."""
    oldest = max(oldest for step, oldest in steps().items() if step <= revision)
    connection.execute(text("UPDATE alembic_version SET code_from = :oldest"), {"oldest": oldest})


def give_way_first(connection: Connection) -> None:
    """Let this transaction wait for locks shorter than requests do, however long its statements run (PostgreSQL).

    Of two migrations at once one gives way too: in an empty database there is no table yet that would keep them apart.
    """
    # A large table takes longer than the time limit of a statement of ours.
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    timeout_ms = connection.execute(
        text("SELECT setting FROM pg_settings WHERE name = 'deadlock_timeout'")
    ).scalar_one()
    connection.execute(text(f"SET LOCAL lock_timeout = {max(1, int(float(timeout_ms) * _BEFORE_DEADLOCK))}"))
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_ONE_AT_A_TIME})"))


def gave_way(error: StoreError) -> bool:
    """Whether a migration ended since others use its tables: it may be tried again."""
    cause: Any = error.__cause__
    return getattr(getattr(cause, "orig", None), "sqlstate", None) in _GAVE_WAY
