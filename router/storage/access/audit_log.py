"""Audit log: who did what, in the transaction that did it. Rows are added, and never changed or deleted.

Every row holds the sha256 of the row before and of itself, so that a row that was changed, removed or put in between is
found. Whoever may write to the database can still make the whole chain again, or cut off its end: keep the last number
and sha256 that `ragbandit audit` prints elsewhere, and give them to the next one. Triggers refuse UPDATE and
DELETE, on SQLite and PostgreSQL, so that no mistake of a program or a person does it.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, insert, select, text

from ragbandit.router.storage.rows.conversion import Row, canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.shared.types import Json

#: columns in the order in which they are hashed
_HASHED: Final = ("number", "made_at", "actor", "action", "target", "tenant", "facts")
#: the action of the entry that says which updates an earlier release archived: {"spans": {label: [[first, last]]}}
ARCHIVED: Final = "store.archived"
#: rows that are read at a time
_BLOCK: Final = 1000
_MAX: Final = {"actor": 128, "action": 64, "target": 128, "tenant": 64}


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One row of the audit log."""

    #: 1, 2, 3 ...
    number: int
    #: seconds since the epoch
    made_at: float
    #: "key:PUBLIC_ID", "cli:USER@HOST" or "process:NAME@HOST"
    actor: str
    #: what was done, as in "key.create"
    action: str
    #: what it was done to
    target: str
    #: whose it is; None: of the whole service
    tenant: str | None
    facts: Mapping[str, Json]
    #: hex digits, over the sha256 of the entry before and this one
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFault:
    """What is wrong with the log, and at which number."""

    number: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditVerdict:
    """Result of a check of the whole log."""

    entries: int
    #: of the last entry; 0 and "" of an empty log
    last_number: int
    last_sha256: str
    #: the first that was found; None: the chain is whole
    fault: AuditFault | None


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
    """Add an entry in the caller's write transaction; returns its number.

    It is there if and only if what it tells of is. actor: "key:PUBLIC_ID" or "cli:USER@HOST". facts: JSON values, and
    no secret. Too long texts are cut. On PostgreSQL other writers of entries wait until the transaction ends.
    """
    if connection.dialect.name != "sqlite":  # a write transaction of SQLite is the only one there is
        connection.execute(text("LOCK TABLE audit_log IN SHARE ROW EXCLUSIVE MODE"))
    number, before = last_of(connection)
    texts = {"actor": actor, "action": action, "target": target, "tenant": tenant}
    row: dict[str, Any] = {name: text and text[: _MAX[name]] for name, text in texts.items()}
    row |= {"number": number + 1, "made_at": time.time() if now is None else now, "facts": canonical(dict(facts or {}))}
    connection.execute(insert(audit_log).values(**row, sha256=_chained(before, row)))
    return number + 1


def last_of(connection: Connection) -> tuple[int, str]:
    """Number and sha256 of the last entry; 0 and "" of an empty log."""
    query = select(audit_log.c.number, audit_log.c.sha256).order_by(audit_log.c.number.desc()).limit(1)
    last = connection.execute(query).first()
    return (0, "") if last is None else (last.number, last.sha256)


def last_entry(connection: Connection, *, action: str, target: str) -> AuditEntry | None:
    """The newest entry of this action on this target; None: there is none."""
    of = audit_log.c.action == action[: _MAX["action"]], audit_log.c.target == target[: _MAX["target"]]
    query = select(audit_log).where(*of).order_by(audit_log.c.number.desc()).limit(1)
    row = connection.execute(query).mappings().first()
    return None if row is None else _entry(row)


def entries(database: Database, *, after: int = 0) -> Iterator[AuditEntry]:
    """The entries with a larger number, in order."""
    for row in _rows(database, after=after):
        yield _entry(row)


def check_entries(database: Database, *, known: tuple[int, str] | None = None) -> AuditVerdict:
    """Check the chain from its first entry to its last.

    known: number and sha256 of an entry that were noted elsewhere; a log that does not hold it is at fault.
    """
    last, fault, met = (0, ""), None, known is None
    for row in _rows(database, after=0):
        if row["number"] != last[0] + 1:
            fault = AuditFault(number=last[0] + 1, reason="the entry is missing")
        elif _chained(last[1], row) != row["sha256"]:
            fault = AuditFault(number=row["number"], reason="the entry, or the one before, is not what was written")
        if fault is not None:
            break
        last = row["number"], row["sha256"]
        met = met or last == known
    if fault is None and known is not None and not met:
        fault = AuditFault(number=known[0], reason="the log does not hold the entry that was noted")
    return AuditVerdict(entries=last[0], last_number=last[0], last_sha256=last[1], fault=fault)


def _entry(row: RowMapping) -> AuditEntry:
    return AuditEntry(**{**row, "facts": json.loads(row["facts"])})


def _rows(database: Database, *, after: int) -> Iterator[RowMapping]:
    while True:
        query = select(audit_log).where(audit_log.c.number > after).order_by(audit_log.c.number).limit(_BLOCK)
        with database.read() as connection:
            rows = connection.execute(query).mappings().all()
        yield from rows
        if not rows:
            return
        after = rows[-1]["number"]


def _chained(before: str, row: Row) -> str:
    content = canonical([before, *(row[name] for name in _HASHED)])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
