"""The job that extends the hourly totals: by one process at a time, in steps of bounded size, each row once.

A step is one transaction: the reader's position moves from where it was read, and the amounts are added, or neither.
The lease is locked while it writes: whoever lost it writes nothing. A process that dies between two steps leaves a
position that the next one goes on from.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, select

from ragbandit.router.storage.access.spending import forget_spending
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.positions import move_position, position_of
from ragbandit.router.storage.sql.tables import decisions, policies
from ragbandit.router.storage.totals.rewards import next_rewards, rewards_reader
from ragbandit.router.storage.totals.rows import (
    Deltas,
    add_deltas,
    forget_hours,
    hour_of,
)
from ragbandit.router.storage.totals.traffic import TRAFFIC, next_traffic

#: rows that one step reads of a table
PAGE_ROWS: Final = 2000
#: how long the lease is held without being prolonged, seconds
LEASE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the totals have come."""

    #: the last decision that was counted was made then; None: none was
    decided_to: float | None
    #: seconds by which the totals are behind the newest decision; 0 while all are counted
    behind_s: float
    #: updates of this ledger that are in no total yet
    updates_behind: int


class Extender:
    """Extends the totals of one store. holder: names this process in the lease. weight: reward.weight."""

    def __init__(
        self, database: Database, *, holder: str, weight: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.database = database
        self.holder = holder
        self.clock = clock
        self._weight = weight
        self._lease = Lease(database=database, name="arm_hours")
        self._forgot_at = -1

    def extend(self, *, seconds: float = 5.0) -> bool:
        """Read on for so long, or until all is read; True while there is more, False too where another one reads.

        Raises StoreError, with no row counted twice.
        """
        if not self._lease.acquire(holder=self.holder, lease_s=LEASE_S):
            return False
        give_up = time.monotonic() + seconds
        with self.database.read() as connection:
            labels = list(connection.execute(_LABELS).scalars())
        more = {"": True} | dict.fromkeys(labels, True)
        while any(more.values()) and time.monotonic() < give_up:
            for label in [label for label, left in more.items() if left]:
                more[label] = self._step(label)
        self._forget()
        return any(more.values())

    def release(self) -> None:
        """Let another process go on."""
        self._lease.release(holder=self.holder)

    def _step(self, label: str) -> bool:
        """One step of the reader of this ledger, "": of the traffic; True if there is more."""
        if label:
            reader = rewards_reader(label)
            with self.database.read() as connection:
                seen = position_of(connection, reader)
            page = next_rewards(self.database, label=label, weight=self._weight, seen=seen, limit=PAGE_ROWS)
        else:
            reader = TRAFFIC
            with self.database.read() as connection:
                seen = position_of(connection, reader)
                page = next_traffic(connection, seen=seen, now=self.clock(), limit=PAGE_ROWS)
        if dict(page.to) == dict(page.seen):
            return False
        return self._write(reader, page.deltas, seen=page.seen, to=page.to) and page.more

    def _write(self, reader: str, deltas: Deltas, *, seen: Any, to: Any) -> bool:
        """False if somebody else holds the lease, or has moved the reader."""
        now = self.clock()
        with self.database.write() as connection:
            if not self._lease.is_held(connection, holder=self.holder):
                return False
            if not move_position(connection, reader, seen=seen, to=to, now=now):
                return False
            add_deltas(connection, deltas, now=now)
        return self._lease.acquire(holder=self.holder, lease_s=LEASE_S)

    def _forget(self) -> None:
        """Once an hour, forget what is old."""
        now = self.clock()
        if self._forgot_at == hour_of(now):
            return
        with self.database.write() as connection:
            if self._lease.is_held(connection, holder=self.holder):
                forget_hours(connection, now=now)
                forget_spending(connection, now=now)
        self._forgot_at = hour_of(now)


def progress_of(connection: Connection, *, label: str, newest: float | None, last_seq: int) -> Progress:
    """How far the totals are. newest: when the newest decision was made; last_seq: the ledger's end."""
    position = position_of(connection, TRAFFIC).get("decisions")
    decided_to = None if position is None or position[0] < 0 else float(position[0])
    reached = decided_to
    if newest is not None and reached is None:  # nothing is counted yet: the oldest decision is what waits longest
        reached = connection.execute(select(func.min(decisions.c.made_at))).scalar()
    behind = 0.0 if newest is None else max(0.0, newest - (newest if reached is None else reached))
    seq = int(position_of(connection, rewards_reader(label)).get("seq", 0))
    return Progress(decided_to=decided_to, behind_s=behind, updates_behind=max(0, last_seq - seq))


#: ledgers that are learned
_LABELS: Final = select(policies.c.label).where(policies.c.retired_at.is_(None)).order_by(policies.c.label)
