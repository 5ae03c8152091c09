"""Audit log: actions of people and processes, each recorded in the transaction of the action.

Triggers refuse UPDATE and DELETE. Every row contains a sha256 of itself and the previous row, so changed, removed and
inserted rows are detected. A user with write access could still rewrite the whole chain or remove its end. To detect
that, store the last number and sha256 printed by `ragbandit audit` elsewhere, and pass them to the next check.
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

#: columns whose values are hashed, in this order
_HASHED: Final = ("number", "made_at", "actor", "action", "target", "tenant", "facts")
_BLOCK: Final = 1000
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
    #: hash of the previous entry's sha256 and this entry, hex digits
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFault:
    number: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditVerdict:
    entries: int
    #: number of the last entry; 0 if the log is empty
    last_number: int
    #: sha256 of the last entry; "" if the log is empty
    last_sha256: str
    #: the first fault; None if the chain is valid
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
    """Add an entry in the caller's write transaction. Returns its number.

    Long texts are cut. On PostgreSQL other writers of entries wait until the transaction ends. facts: must not contain
    secrets.
    """
    if connection.dialect.name != "sqlite":  # SQLite needs no lock, since it has one write transaction at a time
        connection.execute(text("LOCK TABLE audit_log IN SHARE ROW EXCLUSIVE MODE"))
    query = select(audit_log.c.number, audit_log.c.sha256).order_by(audit_log.c.number.desc()).limit(1)
    last = connection.execute(query).first()
    number, before = (0, "") if last is None else (last.number, last.sha256)
    texts = {"actor": actor, "action": action, "target": target, "tenant": tenant}
    row: dict[str, Any] = {name: text and text[: _MAX[name]] for name, text in texts.items()}
    row |= {"number": number + 1, "made_at": time.time() if now is None else now, "facts": canonical(dict(facts or {}))}
    connection.execute(insert(audit_log).values(**row, sha256=_chained(before, row)))
    return number + 1


def last_entry(connection: Connection, *, action: str, target: str) -> AuditEntry | None:
    is_wanted = audit_log.c.action == action[: _MAX["action"]], audit_log.c.target == target[: _MAX["target"]]
    query = select(audit_log).where(*is_wanted).order_by(audit_log.c.number.desc()).limit(1)
    row = connection.execute(query).mappings().first()
    return None if row is None else _entry(row)


def entries(database: Database, *, after: int = 0) -> Iterator[AuditEntry]:
    return map(_entry, _rows(database, after=after))


def check_entries(database: Database, *, known: tuple[int, str] | None = None) -> AuditVerdict:
    """Check the whole chain. known: number and sha256 of an entry, stored elsewhere, that the log must contain."""
    last = (0, "")
    fault = None
    has_known = known is None
    for row in _rows(database, after=0):
        if row["number"] != last[0] + 1:
            fault = AuditFault(number=last[0] + 1, reason="the entry is missing")
        elif _chained(last[1], row) != row["sha256"]:
            fault = AuditFault(number=row["number"], reason="the entry, or the one before, was changed")
        if fault is not None:
            break
        last = row["number"], row["sha256"]
        has_known = has_known or last == known
    if fault is None and known is not None and not has_known:
        fault = AuditFault(number=known[0], reason="the log does not contain the entry with this number and sha256")
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
