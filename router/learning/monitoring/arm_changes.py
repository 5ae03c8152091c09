"""Changed arms: the policy learns an arm again from the first row of its new version.

A change is declared (`ragbandit policy restart`), or detected from `Outcome.made_by`, which contains the arm's class,
params, templates and generator. If these values are new for the arm, the outcome belongs to a new version. Values that
were seen before are no change: the outcomes of a worker with the old configuration are learned normally.

The ledger row records the restart (`Update.restarts`), so a replay does not need the audit log.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import select

from ragbandit.router.learning.adjustments import AdjustedRow, Adjustment, Basis
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.shared.types import ArmName, ClosedDecision, JoinedDecision, Json, PolicyLabel

log = logging.getLogger("ragbandit.learner")

#: keys of `made_by` that define an arm's version; not the index, which changes with its documents, and not the budget
_PARTS: Final = ("arm", "params", "templates", "generator")
_VERSIONS: Final = 8
CHANGE: Final = "arm.change"
KIND: Final = "arm:"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmChange:
    """A declared change of an arm."""

    number: int
    """Number of its entry in the audit log."""
    arm: ArmName
    """Name of the arm."""
    made_at: float
    """Time of the change, seconds since 1970; later decisions belong to the changed arm."""


def declare_change(
    database: Database, arm: ArmName, *, actor: str, reason: str, now: float, label: PolicyLabel | None = None
) -> ArmChange:
    """Record a change, after which ledgers restart the arm. label: the only ledger that restarts it; None for all."""
    with database.write() as connection:
        details: dict[str, Json] = {"reason": reason}
        if label is not None:
            details["label"] = label
        number = record(connection, actor=actor, action=CHANGE, target=f"{KIND}{arm}", facts=details, now=now)
    return ArmChange(number=number, arm=arm, made_at=now)


class ArmChanges(Adjustment):
    """Rejects decisions of earlier versions of their arm, and restarts changed arms."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._waiting: list[ArmChange] = []  #: declared changes that are not applied yet, oldest first
        #: number of the last applied change in the audit log
        self._number = 0
        self._declared: dict[ArmName, float] = {}  #: arm -> time of its last applied declared change
        #: arm -> its versions, the newest last: (hash of _PARTS, time of the first learned decision)
        self._versions: dict[ArmName, list[tuple[str, float]]] = {}
        self._stored = ""

    def refresh(self) -> None:
        row = self.ledger.policy_row()
        state = json.loads((row and row["arms"]) or "{}")
        self._number, self._declared = state.get("number", 0), dict(state.get("declared", {}))
        self._versions = {arm: list(map(tuple, versions)) for arm, versions in state.get("versions", {}).items()}
        self._stored = self._state()
        changes = select(audit_log).where(audit_log.c.number > self._number, audit_log.c.action == CHANGE)
        with self.ledger.database.read() as connection:
            rows = connection.execute(changes.order_by(audit_log.c.number)).all()
        self._waiting = [
            ArmChange(number=row.number, arm=ArmName(row.target.removeprefix(KIND)), made_at=row.made_at)
            for row in rows
            if json.loads(row.facts).get("label", self.ledger.label) == self.ledger.label
        ]

    def unsaved_state(self) -> str | None:
        """The state as JSON; None if it is stored already. Call `mark_saved` after it was stored."""
        state = self._state()
        return None if state == self._stored else state

    def mark_saved(self) -> None:
        self._stored = self._state()

    def _state(self) -> str:
        return canonical({"number": self._number, "declared": self._declared, "versions": self._versions})

    def adjust(self, row: AdjustedRow, *, basis: Basis) -> AdjustedRow | ClosedDecision:  # noqa: ARG002 - of the protocol
        restarts = self._arms_to_restart(row.joined)
        if restarts is None:
            key = row.joined.decision.id
            return ClosedDecision(decision_id=key, state="closed", reason="its arm has changed since")
        return replace(row, restarts=restarts)

    def _arms_to_restart(self, joined: JoinedDecision) -> tuple[ArmName, ...] | None:
        """The arms that restart before the row is learned; None to skip the row, if an earlier version answered."""
        decision, version = joined.decision, _version(joined)
        versions = self._versions.get(decision.arm, [])
        is_earlier = version is not None and versions and version != versions[-1][0]
        is_earlier = is_earlier and decision.made_at < versions[-1][1]
        if is_earlier or decision.made_at < self._declared.get(decision.arm, decision.made_at):
            return None
        changed: list[ArmName] = []
        while self._waiting and self._waiting[0].made_at <= decision.made_at:
            change = self._waiting.pop(0)
            self._number, self._declared[change.arm] = change.number, change.made_at
            changed.append(change.arm)
        if version is not None and version not in dict(versions):
            if versions:
                changed.append(decision.arm)
            self._versions[decision.arm] = [*versions[1 - _VERSIONS :], (version, decision.made_at)]
        arms = tuple(dict.fromkeys(changed))
        if arms:
            log.warning("arms have changed: what was learned of them counts for little", extra={"arms": list(arms)})
        return arms


def _version(joined: JoinedDecision) -> str | None:
    """Hash of the arm's definition in the outcome; None if the outcome contains no definition."""
    made_by: Mapping[str, Json] = {} if joined.outcome is None else joined.outcome.made_by
    if "arm" not in made_by:
        return None
    parts: dict[str, Any] = {name: made_by.get(name) for name in _PARTS}
    return hashlib.sha256(canonical(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
