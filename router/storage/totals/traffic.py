"""Reader of decisions and outcomes, in the order of (made_at, id).

Rows are read once they are SETTLED_S old: whoever made them has committed them by then. What came later all the same
(an outcome that a worker could not write for minutes, a router whose clock is behind) is found when its hour is looked
at again, RECHECKED_S after its end; what is later than that is in no count of traffic, and never in two.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Table, func, select, tuple_

from ragbandit.router.storage.access.spending import forget_spending
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease, move_position, position_of
from ragbandit.router.storage.sql.tables import arm_hours, decisions, outcomes, policies
from ragbandit.router.storage.totals.rows import (
    Deltas,
    add_deltas,
    add_excess,
    forget_hours,
    hour_of,
    next_rewards,
    rewards_reader,
)
from ragbandit.shared.types import CANCELLED, IMPORTED, KILLED, NAMED_ID, STICKY

#: name of the reader
TRAFFIC: Final = "arm_hours"
#: age at which a row is counted, seconds
SETTLED_S: Final = 20.0
#: age at which an hour that is over is compared with its rows, seconds
RECHECKED_S: Final = 900.0
#: columns of a decision that its draw is read of
_DRAW: Final = ("arm", "arms", "pmf")
_START: Final = (-1.0, "")
#: column of a row that is counted -> what its request holds where it is so
_MARKS: Final = {"was_forced": '"forced":true', "was_named": f'"{NAMED_ID}":true'}
_COUNTED_AGAIN: Final = (
    *("decided", "explored", "sticky", "forced", "killed", "faults", "answered", "failed", "cancelled"),
    *("dollars", "prompt_tokens", "completion_tokens", "steps", "seconds", "latency"),
)


def next_traffic(
    connection: Connection, *, seen: Mapping[str, Any], now: float, limit: int
) -> tuple[dict[str, Any], Deltas, bool]:
    """The next page after `seen`, `limit` decisions and as many outcomes; as `next_rewards`."""
    positions = {name: tuple(seen.get(name, _START)) for name in ("decisions", "outcomes")}
    to: dict[str, Any] = {"checked": hour_of(now), **seen, **{k: list(v) for k, v in positions.items()}}
    deltas = Deltas()
    settled = hour_of(now - RECHECKED_S)
    due = to["checked"] < settled
    end = 3600.0 * min(to["checked"] + 2, settled)
    if due and all(position[0] >= end for position in positions.values()):
        return _rechecked(connection, to=to, settled=settled, limit=limit)
    more = False
    for table, key in ((decisions, "id"), (outcomes, "decision_id")):
        rows = _page(connection, table, after=positions[table.name], until=now - SETTLED_S, limit=limit)
        _count(table, rows, deltas)
        if rows:
            to[table.name] = [rows[-1]["made_at"], rows[-1][key]]
        more = more or len(rows) == limit
    if due and all(
        to[name] == list(position) for name, position in positions.items()
    ):  # nothing has come since that hour
        return _rechecked(connection, to=to, settled=settled, limit=limit)
    return to, deltas, more


def _rechecked(
    connection: Connection, *, to: dict[str, Any], settled: int, limit: int
) -> tuple[dict[str, Any], Deltas, bool]:
    """A step that looks at hours again, and at nothing else: what it compares must have been written.

    Where more than two are due the reader was away: what is later than the second was read long after its end.
    """
    deltas = Deltas()
    for hour in range(to["checked"], min(to["checked"] + 2, settled)):
        _recheck(connection, hour, deltas=deltas, limit=limit)
    return {**to, "checked": settled}, deltas, True


def _page(
    connection: Connection, table: Table, *, after: tuple[Any, ...], until: float, limit: int, since: float = -1.0
) -> list[Mapping[str, Any]]:
    if table is decisions:
        names = decisions.c["id", "made_at", "policy", *_DRAW, "explored", "facts"]
        marks = [decisions.c.request.contains(mark).label(name) for name, mark in _MARKS.items()]
        query, key = select(*names, decisions.c.fault.is_not(None).label("faulty"), *marks), decisions.c.id
    else:
        names = outcomes.c["decision_id", "made_at", "status", "stop_reason", "cost", "steps"]
        query = select(*names, *decisions.c["policy", *_DRAW, "facts"], decisions.c.made_at.label("decided_at"))
        key = outcomes.c.decision_id
        query = query.join_from(outcomes, decisions, decisions.c.id == outcomes.c.decision_id)
    time = table.c.made_at
    # The first bound is for the index, which has no ids.
    query = query.where(time >= max(after[0], since), time < until, tuple_(time, key) > tuple_(*after))
    return [dict(row) for row in connection.execute(query.order_by(time, key).limit(limit)).mappings()]


def _count(table: Table, rows: Iterable[Mapping[str, Any]], deltas: Deltas) -> None:
    for row in rows:
        if _has(row["facts"], IMPORTED):
            continue
        key = row["policy"], hour_of(row["made_at"]), row["arm"]
        if table is decisions:
            flags = {"explored": row["explored"], "faults": row["faulty"], "forced": row["was_forced"]}
            flags |= {"sticky": _has(row["facts"], STICKY), "killed": _has(row["facts"], KILLED)}
            deltas.add(key, decided=1, **{name: 1 for name, counts in flags.items() if counts})
            add_excess(deltas, row, policy=key[0], hour=key[1], stage="drawn")
            if row["was_named"]:
                add_excess(deltas, row, policy=key[0], hour=key[1], stage="named")
        else:
            _count_outcome(key, row, deltas)
            add_excess(deltas, row, policy=key[0], hour=hour_of(row["decided_at"]), stage="ended")


def _has(facts: str, key: str) -> bool:
    """Whether the facts have the key; a text in them has its quotes escaped."""
    return f'"{key}":' in facts


def _count_outcome(key: tuple[str, int, str], row: Mapping[str, Any], deltas: Deltas) -> None:
    cost = cost_value(row["cost"])
    cancelled = row["stop_reason"] == CANCELLED
    deltas.add(
        key,
        **{"cancelled" if cancelled else "failed" if row["status"] == "failed" else "answered": 1},
        dollars=cost.dollars,
        prompt_tokens=cost.prompt_tokens,
        completion_tokens=cost.completion_tokens,
        steps=row["steps"],
    )
    if cost.seconds_total > 0.0 and not cancelled:
        deltas.took(key, cost.seconds_total)


def _recheck(connection: Connection, hour: int, *, deltas: Deltas, limit: int) -> None:
    """Compare an hour that is over with its rows, and add what was missed."""
    since, until = 3600.0 * hour, 3600.0 * (hour + 1)
    stored: dict[tuple[str, str], dict[str, Any]] = {}
    ours = arm_hours.c.policy.in_(select(policies.c.label)), arm_hours.c.hour == hour
    for row in connection.execute(select(arm_hours).where(*ours)):
        stored[row.policy, row.arm] = json.loads(row.totals)
    for table, names in ((decisions, ("decided",)), (outcomes, ("answered", "failed", "cancelled"))):
        span = table.c.made_at >= since, table.c.made_at < until
        there = connection.execute(select(func.count()).select_from(table).where(*span)).scalar_one()
        known = sum(totals.get(name, 0) for totals in stored.values() for name in names)
        if there <= known:
            continue
        fresh, after = Deltas(), (since, "")
        while page := _page(connection, table, after=after, until=until, limit=limit, since=since):
            _count(table, page, fresh)
            after = (page[-1]["made_at"], page[-1]["id" if table is decisions else "decision_id"])
        _add_missed(fresh, stored, names=names, deltas=deltas)


def _add_missed(
    fresh: Deltas, stored: Mapping[tuple[str, str], Mapping[str, Any]], *, names: tuple[str, ...], deltas: Deltas
) -> None:
    for (policy, hour, arm), totals in fresh.items():
        known = stored.get((policy, arm), {})
        if sum(totals.get(name, 0) for name in names) <= sum(known.get(name, 0) for name in names):
            continue
        missed: dict[str, Any] = {
            name: _less(totals[name], known.get(name)) for name in _COUNTED_AGAIN if name in totals
        }
        extremes = {name: totals[name] for name in ("fastest", "slowest") if name in totals}
        deltas.add((policy, hour, arm), **missed, **extremes)


def _less(now: Any, before: Any) -> Any:
    if before is None:
        return now
    return [a - b for a, b in zip(now, before, strict=True)] if isinstance(now, list) else now - before


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
        reader = rewards_reader(label) if label else TRAFFIC
        with self.database.read() as connection:
            seen = position_of(connection, reader)
            if label:
                page = next_rewards(connection, label=label, weight=self._weight, seen=seen, limit=PAGE_ROWS)
            else:
                page = next_traffic(connection, seen=seen, now=self.clock(), limit=PAGE_ROWS)
        to, deltas, more = page
        return to != seen and self._write(reader, deltas, seen=seen, to=to) and more

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
