"""Policy versions of a ledger, as decisions name them: those with a snapshot row, and those whose rows were pruned.

Only the newest rows of `snapshots` are kept. What decided before them is still known: a version's name has its last
update and the beginning of its sha256, and of every policy that the ledger had a row stays.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import func, select

from ragbandit.router.storage.ledgers.ledger import SNAPSHOT_ROWS, Ledger
from ragbandit.router.storage.rows.conversion import canonical, snapshot_value
from ragbandit.router.storage.sql.tables import decisions, snapshots
from ragbandit.shared.types import SnapshotInfo

#: when the first and the last decision of a version were made
Span = tuple[float, float]
#: last update and beginning of the sha256, as a version's name ends
_NAMED: Final = re.compile(r"(\d{1,18})-([0-9a-f]{12})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """The versions of one ledger."""

    #: those with a row
    known: dict[str, SnapshotInfo]
    #: those of decisions in the database, and when they were made
    used: dict[str, Span]
    #: rows of snapshots up to this update may have been pruned; -1: none was
    pruned_upto: int

    def could_be(self, version: str, *, label: str) -> Iterator[SnapshotInfo]:
        """What a version without a row may have been, one for every policy that the ledger had; none if none was.

        The sha256 of these is the beginning that the name tells.
        """
        named = _NAMED.fullmatch(version.removeprefix(f"{label}-"))
        if named is None or int(named[1]) > self.pruned_upto:
            return
        policies = {(i.algorithm, canonical(dict(i.params)), i.encoder_hash): i for i in self.known.values()}
        for info in policies.values():
            yield replace(info, version=version, last_seq=int(named[1]), sha256=named[2])


def is_pruned(info: SnapshotInfo) -> bool:
    """Whether this is what a version without a row may have been."""
    return len(info.sha256) < 64


def versions_of(ledger: Ledger) -> Versions:
    """The versions of a ledger, read from the database."""
    mine = select(snapshots).where(snapshots.c.policy == ledger.label)
    oldest = mine.order_by(snapshots.c.last_seq.desc()).offset(SNAPSHOT_ROWS - 1).limit(1)
    with ledger.database.read() as connection:
        known = [snapshot_value(row) for row in connection.execute(mine).mappings()]
        last = connection.execute(oldest).mappings().first()
        at = decisions.c.made_at
        spans = select(decisions.c.version, func.min(at).label("first"), func.max(at).label("last"))
        spans = spans.where(decisions.c.policy == ledger.label).group_by(decisions.c.version)
        used = {row.version: (row.first, row.last) for row in connection.execute(spans)}
    upto = -1 if last is None else last["last_seq"]
    return Versions(known={info.version: info for info in known}, used=used, pruned_upto=upto)
