"""Changes of arms that somebody declares: entries of the audit log; every ledger takes them up at its own place."""

import json
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.shared.types import ArmName, Json, PolicyLabel

_ACTION: Final = "arm.change"
_KIND: Final = "arm:"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmChange:
    """A declared change: under its name the arm is another one from now on."""

    number: int
    """Of its entry in the audit log."""
    arm: ArmName
    """The arm."""
    made_at: float
    """When, seconds since 1970; decisions from then on are of the arm as it is now."""


def declare_change(
    database: Database, arm: ArmName, *, actor: str, reason: str, now: float, label: PolicyLabel | None = None
) -> ArmChange:
    """Note that an arm has changed. Every ledger begins it anew before the first decision of after `now`.

    label: that ledger alone does; the others go on.
    """
    with database.write() as connection:
        facts: dict[str, Json] = {"reason": reason}
        if label is not None:
            facts["label"] = label
        number = record(connection, actor=actor, action=_ACTION, target=f"{_KIND}{arm}", facts=facts, now=now)
    return ArmChange(number=number, arm=arm, made_at=now)


def changes_after(connection: Connection, number: int, *, label: PolicyLabel) -> list[ArmChange]:
    """The declared changes with a larger number that are about this ledger, in their order."""
    query = select(audit_log.c.number, audit_log.c.target, audit_log.c.made_at, audit_log.c.facts)
    query = query.where(audit_log.c.number > number, audit_log.c.action == _ACTION).order_by(audit_log.c.number)
    return [
        ArmChange(number=row.number, arm=ArmName(row.target.removeprefix(_KIND)), made_at=row.made_at)
        for row in connection.execute(query)
        if json.loads(row.facts).get("label", label) == label
    ]
