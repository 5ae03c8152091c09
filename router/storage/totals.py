"""Hourly totals of the arms: each row of decisions, outcomes and ledgers is read once; pages and metrics count none."""

import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Table, delete, func, select, tuple_

from ragbandit.router.storage.access.spending import forget_spending
from ragbandit.router.storage.rows.conversion import (
    arms_value,
    canonical,
    json_object,
    of_known,
    reward_at,
    scores_value,
)
from ragbandit.router.storage.rows.outcome_rows import own_cost
from ragbandit.router.storage.sql.bulk_insert import insert_into
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import arm_hours, decisions, outcomes, policies, reading_positions, updates
from ragbandit.shared.types import (
    CANCELLED,
    IMPORTED,
    KILLED,
    LATENCY_EDGES,
    NAMED_ID,
    STICKY,
    ArmName,
    ArmTotals,
    PolicyLabel,
    SampleStage,
)

#: the hour of the rows with all that was ever counted
EVER: Final = -1
#: hours for which an hour is kept
KEPT: Final = 400 * 24
#: keys of one statement
_KEYS: Final = 500

#: (policy, hour, arm)
Key = tuple[str, int, str]
_KEY: Final = tuple_(arm_hours.c.policy, arm_hours.c.hour, arm_hours.c.arm)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmHour:
    """What an arm did under a policy in an hour."""

    policy: PolicyLabel
    #: hours since the epoch, UTC
    hour: int
    arm: ArmName
    totals: ArmTotals


def hour_of(seconds: float) -> int:
    """The hour of a time, in hours since the epoch."""
    return int(seconds // 3600)


class Deltas(dict[Key, dict[str, Any]]):
    """Amounts to be added to rows of `arm_hours`."""

    def add(self, key: Key, **amounts: Any) -> None:
        """Add amounts, by the names of ArmTotals, to a row."""
        row = self.setdefault(key, {})
        for name, amount in amounts.items():
            if name in _BOTH and name in row:
                row[name] = _BOTH[name](row[name], amount)
            else:
                row[name] = row[name] + amount if name in row else amount

    def took(self, key: Key, seconds: float) -> None:
        """Add an outcome of this duration."""
        at = bisect_left(LATENCY_EDGES, seconds)
        latency = [int(number == at) for number in range(len(LATENCY_EDGES) + 1)]
        self.add(key, seconds=seconds, fastest=seconds, slowest=seconds, latency=latency)


def hours_of(connection: Connection, *, policy: str, since: int, until: int) -> list[ArmHour]:
    """The rows of one policy with since <= hour < until, by hour and arm. A range of the primary key."""
    here = arm_hours.c.policy == policy, arm_hours.c.hour >= max(since, 0), arm_hours.c.hour < until
    rows = connection.execute(select(arm_hours).where(*here).order_by(arm_hours.c.hour, arm_hours.c.arm))
    label = PolicyLabel(policy)
    return [ArmHour(policy=label, hour=row.hour, arm=ArmName(row.arm), totals=totals_value(row.totals)) for row in rows]


def summed(
    connection: Connection, *, policy: str | None, since: int, until: int, names: Collection[str]
) -> dict[ArmName, ArmTotals]:
    """Arm -> the sums of some counts over since <= hour < until, of one policy or (None) of all."""
    labels = select(policies.c.label) if policy is None else [policy]
    here = arm_hours.c.policy.in_(labels), arm_hours.c.hour >= max(since, 0), arm_hours.c.hour < until
    sums: dict[ArmName, dict[str, Any]] = {}
    for arm, text in connection.execute(select(arm_hours.c.arm, arm_hours.c.totals).where(*here)):
        own, totals = sums.setdefault(ArmName(arm), {}), json.loads(text)
        for name in names:
            if name in totals:
                own[name] = own.get(name, 0) + totals[name]
    return {arm: ArmTotals(**sums[arm]) for arm in sorted(sums)}


def totals_ever(connection: Connection, *, policy: str) -> dict[ArmName, ArmTotals]:
    """Arm -> all that was ever counted of it under a policy."""
    here = arm_hours.c.policy == policy, arm_hours.c.hour == EVER
    rows = connection.execute(select(arm_hours).where(*here).order_by(arm_hours.c.arm))
    return {ArmName(row.arm): totals_value(row.totals) for row in rows}


def totals_value(text: str) -> ArmTotals:
    """The totals of their JSON."""
    values = json_object(text)
    if "latency" in values:
        values["latency"] = tuple(values["latency"])
    return of_known(ArmTotals, values)


def add_deltas(connection: Connection, deltas: Deltas, *, now: float) -> None:
    """Add them to the rows, in a write transaction of the lease's holder; of a deleted hour only to EVER."""
    oldest, sums = hour_of(now) - KEPT, Deltas()
    for (policy, hour, arm), amounts in deltas.items():
        sums.add((policy, EVER, arm), **amounts)
        if hour >= oldest:
            sums.add((policy, hour, arm), **amounts)
    insert = insert_into(connection, arm_hours)
    insert = insert.on_conflict_do_update(index_elements=arm_hours.primary_key, set_={"totals": insert.excluded.totals})
    keys = sorted(sums)
    for page in (keys[start : start + _KEYS] for start in range(0, len(keys), _KEYS)):
        for row in connection.execute(select(arm_hours).where(_KEY.in_(page))):
            sums.add((row.policy, row.hour, row.arm), **json.loads(row.totals))
        names = arm_hours.columns.keys()
        connection.execute(insert, [dict(zip(names, (*key, canonical(sums[key])), strict=True)) for key in page])


#: how amounts that are not added are put together
_BOTH: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "latency": lambda before, more: [x + y for x, y in zip(before, more, strict=True)],
    "fastest": min,
    "slowest": max,
}


def add_excess(deltas: Deltas, decision: Mapping[str, Any], *, policy: str, hour: int, stage: SampleStage) -> None:
    """Count a draw of `decision` (arm, arms, pmf) in its hour, unless it had no choice or cannot be read."""
    try:
        arms, pmf = arms_value(decision["arms"]), scores_value(decision["pmf"]) or ()
        chances = {arm: float(p) for arm, p in zip(arms, pmf, strict=True) if 0.0 < p < 1.0}
    except (ValueError, TypeError):
        return
    if decision["arm"] not in chances:
        return
    for arm, p in chances.items():
        amounts = {f"{stage}_excess": (arm == decision["arm"]) - p, f"{stage}_spread": p * (1.0 - p)}
        deltas.add((policy, hour, arm), **amounts)


_UPDATE: Final = ("seq", "arm", "value", "quality", "cost", "source", "minimum", "maximum", "preset")
_DECISION: Final = ("id", "made_at", "policy", "arms", "facts", "pmf", "cost_weight")


def rewards_reader(label: str) -> str:
    """The name of a ledger's reader."""
    return f"arm_hours:{label}"


def next_rewards(
    connection: Connection, *, label: str, weight: float, seen: Mapping[str, Any], limit: int
) -> tuple[dict[str, Any], Deltas, bool]:
    """The next `limit` updates of a ledger after `seen`: the new position, what they add, whether more may follow."""
    columns = [updates.c[name] for name in _UPDATE] + [decisions.c[name] for name in _DECISION]
    query = select(*columns).join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
    query = query.where(updates.c.policy == label, updates.c.seq > int(seen.get("seq", 0)))
    rows = [dict(row) for row in connection.execute(query.order_by(updates.c.seq).limit(limit)).mappings()]
    deltas = Deltas()
    for row in rows:
        _count_update(row, label=label, weight=weight, deltas=deltas)
    return {"seq": rows[-1]["seq"]} if rows else dict(seen), deltas, bool(rows)


def _count_update(row: Mapping[str, Any], *, label: str, weight: float, deltas: Deltas) -> None:
    if _has(row["facts"], IMPORTED):
        return
    hour = hour_of(row["made_at"])
    sums = {"reward": reward_at(row, weight=weight), "quality": float(row["quality"]), "cost": float(row["cost"])}
    kind = "learned" if row["source"] == "explicit" else "defaulted"
    deltas.add((label, hour, row["arm"]), **{kind: 1}, **sums)
    # Where another ledger decided, this one's policy did not serve it.
    if row["policy"] == label and kind == "learned":
        add_excess(deltas, row, policy=label, hour=hour, stage="judged")


def minutes_of(connection: Connection, *, policy: str, since: int, weight: float, limit: int) -> list[ArmHour]:
    """As `hours_of`, by minutes since the epoch, counted from rows; [] if a table has `limit` rows since then."""
    deltas, began = Deltas(), 60.0 * since
    for table in _COUNTED:
        page = _page(connection, table, after=(began, ""), until=math.inf, limit=limit)
        if len(page) == limit:
            return []
        _count(table, map(_by_minute, page), deltas)
    columns = [updates.c[name] for name in _UPDATE] + [decisions.c[name] for name in _DECISION]
    query = select(*columns).join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
    query = query.where(updates.c.policy == policy).order_by(updates.c.seq.desc()).limit(limit)
    for row in map(dict, connection.execute(query).mappings()):
        if row["made_at"] >= began:
            _count_update(_by_minute(row), label=policy, weight=weight, deltas=deltas)
    mine = {key: totals_value(canonical(deltas[key])) for key in sorted(deltas) if key[0] == policy and key[1] >= since}
    return [
        ArmHour(policy=PolicyLabel(policy), hour=minute, arm=ArmName(arm), totals=totals)
        for (_, minute, arm), totals in mine.items()
    ]


def _by_minute(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its times scaled so that an hour of it is a minute."""
    return {**row, **{name: 60.0 * row[name] for name in ("made_at", "decided_at") if name in row}}


#: name of the reader
TRAFFIC: Final = "arm_hours"
#: age at which a row is counted, seconds
SETTLED_S: Final = 20.0
#: age at which an hour that is over is compared with its rows, seconds
RECHECKED_S: Final = 900.0
#: columns of a decision that its draw is read of
_DRAW: Final = ("arm", "arms", "pmf")
#: column of a row that is counted -> the text in its request that sets it
_MARKS: Final = {"was_forced": '"forced":true', "was_named": f'"{NAMED_ID}":true'}
#: table -> its key, and the totals that count its rows
_COUNTED: Final = {decisions: ("id", ("decided",)), outcomes: ("decision_id", ("answered", "failed", "cancelled"))}
_COUNTED_AGAIN: Final = (
    *("decided", "explored", "sticky", "forced", "killed", "faults", "answered", "failed", "cancelled"),
    *("dollars", "prompt_tokens", "completion_tokens", "steps", "seconds", "latency"),
)


def next_traffic(
    connection: Connection, *, seen: Mapping[str, Any], now: float, limit: int
) -> tuple[dict[str, Any], Deltas, bool]:
    """The next page after `seen`, `limit` decisions and as many outcomes; as `next_rewards`.

    A step that looks at hours again does nothing else: what it compares must have been written. Where more than two are
    due the reader was away: what is later than the second was read long after its end.
    """
    to: dict[str, Any] = {"checked": hour_of(now), **seen}
    deltas, first = Deltas(), to["checked"]
    if first < to.get("due", first):
        for hour in range(first, min(first + 2, to["due"])):
            _recheck(connection, hour, deltas=deltas, limit=limit)
        return {**to, "checked": to["due"]}, deltas, True
    more = False
    for table, (key, _) in _COUNTED.items():
        after = tuple(to.get(table.name, (-1.0, "")))
        rows = _page(connection, table, after=after, until=now - SETTLED_S, limit=limit)
        _count(table, rows, deltas)
        if rows:
            to[table.name] = [rows[-1]["made_at"], rows[-1][key]]
        more = more or len(rows) == limit
    if not more:
        to["due"] = hour_of(now - RECHECKED_S)
    return to, deltas, more or first < to["due"]


def _page(
    connection: Connection, table: Table, *, after: tuple[Any, ...], until: float, limit: int
) -> list[Mapping[str, Any]]:
    if table is decisions:
        names = decisions.c["id", "made_at", "policy", *_DRAW, "explored", "facts"]
        marks = [decisions.c.request.contains(mark).label(name) for name, mark in _MARKS.items()]
        query = select(*names, decisions.c.fault.is_not(None).label("faulty"), *marks)
    else:
        names = outcomes.c["decision_id", "made_at", "status", "stop_reason", "cost", "steps"]
        query = select(*names, *decisions.c["policy", *_DRAW, "facts"], decisions.c.made_at.label("decided_at"))
        query = query.join_from(outcomes, decisions, decisions.c.id == outcomes.c.decision_id)
    time, key = table.c.made_at, table.c[_COUNTED[table][0]]
    # The first bound is for the index, which has no ids.
    query = query.where(time >= after[0], time < until, tuple_(time, key) > tuple_(*after))
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
    cost = own_cost(row["cost"])
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
    ours = arm_hours.c.policy.in_(select(policies.c.label)), arm_hours.c.hour == hour
    rows = connection.execute(select(arm_hours).where(*ours))
    stored: dict[tuple[str, str], dict[str, Any]] = {(row.policy, row.arm): json.loads(row.totals) for row in rows}
    for table, (key, names) in _COUNTED.items():
        span = table.c.made_at >= since, table.c.made_at < until
        there = connection.execute(select(func.count()).select_from(table).where(*span)).scalar_one()
        if there <= sum(totals.get(name, 0) for totals in stored.values() for name in names):
            continue
        fresh, after = Deltas(), (since, "")
        while page := _page(connection, table, after=after, until=until, limit=limit):
            _count(table, page, fresh)
            after = (page[-1]["made_at"], page[-1][key])
        for (policy, _, arm), totals in fresh.items():
            known = stored.get((policy, arm), {})
            if sum(totals.get(name, 0) for name in names) > sum(known.get(name, 0) for name in names):
                deltas.add((policy, hour, arm), **_missed(totals, known=known))


def _missed(totals: Mapping[str, Any], *, known: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be added to the known totals of an hour."""
    missed = {name: totals[name] for name in _COUNTED_AGAIN if name in totals}
    for name in missed.keys() & known.keys():
        now, before = missed[name], known[name]
        missed[name] = [a - b for a, b in zip(now, before, strict=True)] if name == "latency" else now - before
    return missed | {name: totals[name] for name in ("fastest", "slowest") if name in totals}


#: rows that one step reads of a table
PAGE_ROWS: Final = 2000
#: how long the lease is held without being prolonged, seconds
LEASE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the totals have come."""

    #: time of the last decision that was counted, if there is one
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
        """Read on for `seconds`; True if more is left, False also if another process reads. Raises StoreError."""
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
        return to != seen and self._write(reader, deltas, to=to) and more

    def _write(self, reader: str, deltas: Deltas, *, to: Mapping[str, Any]) -> bool:
        """False if another process holds the lease, and may have read on."""
        now = self.clock()
        with self.database.write() as connection:
            if not self._lease.is_held(connection, holder=self.holder):
                return False
            moved = insert_into(connection, reading_positions)
            moved = moved.values(reader=reader, position=canonical(dict(to)), moved_at=now)
            new = {name: moved.excluded[name] for name in ("position", "moved_at")}
            connection.execute(moved.on_conflict_do_update(index_elements=["reader"], set_=new))
            add_deltas(connection, deltas, now=now)
        return self._lease.acquire(holder=self.holder, lease_s=LEASE_S)

    def _forget(self) -> None:
        """Once an hour, forget what is old."""
        now = self.clock()
        if self._forgot_at == hour_of(now):
            return
        with self.database.write() as connection:
            if self._lease.is_held(connection, holder=self.holder):
                old = arm_hours.c.hour >= 0, arm_hours.c.hour < hour_of(now) - KEPT
                connection.execute(delete(arm_hours).where(*old))
                forget_spending(connection, now=now)
        self._forgot_at = hour_of(now)


def position_of(connection: Connection, reader: str) -> dict[str, Any]:
    """Up to where a reader has come; empty before it began."""
    text = connection.execute(select(reading_positions.c.position).where(reading_positions.c.reader == reader)).scalar()
    return {} if text is None else dict(json.loads(text))


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
