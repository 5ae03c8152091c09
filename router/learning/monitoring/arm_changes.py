"""Where a ledger begins an arm anew: before the first row of the arm as it is now.

A change is declared (`ragbandit arms changed`), or detected: what a worker writes into `Outcome.made_by` is the arm's
class, params, templates and generator, and the first outcome that was made by others tells that the arm is another one.
What was known before is no change: a worker of before that goes on beside the new ones, and a configuration that comes
back, are learned as they come.

The place is written into the ledger with the row (`Update.restarts`), and what is known of the arms in the same
transaction: a replay needs neither this module nor the audit log.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from ragbandit.router.storage.ledgers.arm_changes import ArmChange, changes_after
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.types import ArmName, JoinedDecision, Json

log = logging.getLogger("ragbandit.learner")

#: what tells two versions of an arm apart; not the index, which follows its documents, and not a question's caps
_PARTS: Final = ("arm", "params", "templates", "generator")
#: versions of an arm that are known at a time
_VERSIONS: Final = 8


class ArmChanges:
    """What one ledger knows of its arms, and which changes it has still to take up."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._waiting: list[ArmChange] = []
        #: the last declared change that was taken up; per arm when that was made, and its versions, the newest last,
        #: each a digest of _PARTS and the time of the first decision that was learned of it
        self._number = 0
        self._declared: dict[ArmName, float] = {}
        self._versions: dict[ArmName, list[tuple[str, float]]] = {}
        self._stored = ""

    def refresh(self) -> None:
        """Read what the ledger knows, and the changes that were declared since."""
        row = self.ledger.registered()
        known = json.loads((row and row["arms"]) or "{}")
        self._number, self._declared = known.get("number", 0), dict(known.get("declared", {}))
        self._versions = {arm: [(one, at) for one, at in some] for arm, some in known.get("versions", {}).items()}
        self._stored = self._state()
        with self.ledger.database.read() as connection:
            self._waiting = changes_after(connection, self._number, label=self.ledger.label)

    def news(self) -> str | None:
        """What the ledger is to know of its arms, as JSON, where that is not what it knows."""
        state = self._state()
        return None if state == self._stored else state

    def kept(self) -> None:
        """The news are written."""
        self._stored = self._state()

    def _state(self) -> str:
        known = {"number": self._number, "declared": self._declared, "versions": self._versions}
        return canonical(known)

    def is_of_before(self, joined: JoinedDecision) -> bool:
        """Whether the arm that answered is not the one that has its name now."""
        arm, at = joined.decision.arm, joined.decision.made_at
        version, known = _version(joined), self._versions.get(arm)
        is_former = known is not None and version is not None and version != known[-1][0] and at < known[-1][1]
        return is_former or at < self._declared.get(arm, at)

    def taken_up(self, joined: JoinedDecision) -> tuple[ArmName, ...]:
        """The arms that begin anew before this row is learned."""
        decision, changed = joined.decision, list[ArmName]()
        while self._waiting and self._waiting[0].made_at <= decision.made_at:
            change = self._waiting.pop(0)
            self._number, self._declared[change.arm] = change.number, change.made_at
            changed.append(change.arm)
        version, known = _version(joined), self._versions.get(decision.arm, [])
        if version is not None and version not in (one for one, _ in known):
            if known:
                changed.append(decision.arm)
            self._versions[decision.arm] = [*known[1 - _VERSIONS :], (version, decision.made_at)]
        return _announced(changed)


def _announced(changed: list[ArmName]) -> tuple[ArmName, ...]:
    arms = tuple(dict.fromkeys(changed))
    if arms:
        log.warning("arms have changed: what was learned of them counts for little", extra={"arms": list(arms)})
    return arms


def _version(joined: JoinedDecision) -> str | None:
    """A digest of what made the outcome; None where nobody says."""
    made_by: Mapping[str, Json] = {} if joined.outcome is None else joined.outcome.made_by
    if "arm" not in made_by:
        return None
    parts: dict[str, Any] = {name: made_by.get(name) for name in _PARTS}
    return hashlib.sha256(canonical(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
