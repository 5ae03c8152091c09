"""Audit log: actions of people and processes, each recorded in the transaction of the action.

Triggers refuse UPDATE and DELETE. A user who may change the schema can drop them, so copy the entries to another system
(`ragbandit audit`) if that matters.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import RowMapping, func, insert, select, text

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.shared.types import Json

_BLOCK: Final = 1000
#: action of an entry about the clock of a host (`target`), with the fact `ahead_s`; 0 once the clock is right again
CLOCK_ACTION: Final = "clock"
_MAX: Final = {"actor": 128, "action": 64, "target": 128, "tenant": 64}


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    number: int
    made_at: float
    #: "key:PUBLIC_ID", "cli:USER@HOST" or "process:NAME@HOST"
    actor: str
    action: str
    #: object of the action, for example "key:PUBLIC_ID"
    target: str
    #: tenant of the object; None if the object belongs to the whole service
    tenant: str | None
    facts: Mapping[str, Json]


def record(
    connection: Connection,
    *,
    actor: str,
    action: str,
    target: str,
    tenant: str | None = None,
    facts: Mapping[str, Json] | None = None,
    now: float | None = None,
) -> int:
    """Add an entry in the caller's write transaction. Returns its number.

    Long texts are cut. On PostgreSQL other writers of entries are blocked until the transaction ends. facts: must not
    contain secrets.
    """
    if not connection.is_sqlite:  # SQLite needs no lock, since it has one write transaction at a time
        connection.execute(text("LOCK TABLE audit_log IN SHARE ROW EXCLUSIVE MODE"))
    number = int(connection.execute(select(func.coalesce(func.max(audit_log.c.number), 0))).scalar_one()) + 1
    texts = {"actor": actor, "action": action, "target": target, "tenant": tenant}
    row: dict[str, Any] = {name: text and text[: _MAX[name]] for name, text in texts.items()}
    row |= {"number": number, "made_at": time.time() if now is None else now, "facts": canonical(dict(facts or {}))}
    connection.execute(insert(audit_log).values(**row))
    return number


def last_entry(connection: Connection, *, action: str, target: str) -> AuditEntry | None:
    is_wanted = audit_log.c.action == action[: _MAX["action"]], audit_log.c.target == target[: _MAX["target"]]
    query = select(audit_log).where(*is_wanted).order_by(audit_log.c.number.desc()).limit(1)
    row = connection.execute(query).mappings().first()
    return None if row is None else _entry(row)


def last_entries(connection: Connection, *, action: str) -> list[AuditEntry]:
    """The newest entry of each target with this action, the newest first, for at most 100 targets."""
    newest = select(func.max(audit_log.c.number)).where(audit_log.c.action == action).group_by(audit_log.c.target)
    query = select(audit_log).where(audit_log.c.number.in_(newest)).order_by(audit_log.c.number.desc()).limit(100)
    return [_entry(row) for row in connection.execute(query).mappings()]


def entries(database: Database, *, after: int = 0) -> Iterator[AuditEntry]:
    """Yield the entries with a number above `after`, in order."""
    while True:
        query = select(audit_log).where(audit_log.c.number > after).order_by(audit_log.c.number).limit(_BLOCK)
        with database.read() as connection:
            rows = connection.execute(query).mappings().all()
        yield from map(_entry, rows)
        if not rows:
            return
        after = rows[-1]["number"]


def _entry(row: RowMapping) -> AuditEntry:
    return AuditEntry(**{**row, "facts": json.loads(row["facts"])})
