"""Hourly totals of the arms, so that pages and metrics need not count rows. Each row is read and added once."""

import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, Table, delete, func, select, tuple_

from ragbandit.router.storage.access.spending import forget_spending
from ragbandit.router.storage.jobs.judged_arms import forget_judged
from ragbandit.router.storage.rows.conversion import arms_value, canonical, from_json, reward_at, scores_value
from ragbandit.router.storage.rows.outcome_rows import own_cost
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, IMPORTED_COLUMNS, QueriedFacts, is_imported
from ragbandit.router.storage.sql.bulk_insert import put_rows
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.deadlines import DeadlineClock
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.positions import move_position, position_of
from ragbandit.router.storage.sql.tables import EVER, arm_hours, decisions, outcomes, policies, updates
from ragbandit.shared.types import (
    CANCELLED,
    LATENCY_EDGES,
    MOST_FACTOR,
    NOT_BY_POLICY,
    ArmName,
    ArmTotals,
    PolicyLabel,
    SampleStage,
)

#: number of hours whose totals are kept
KEPT: Final = 400 * 24
#: number of rows that one statement reads
_KEYS: Final = 500

#: (policy, hour, arm)
Key = tuple[str, int, str]
_KEY: Final = tuple_(arm_hours.c.policy, arm_hours.c.hour, arm_hours.c.arm)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmHour:
    policy: PolicyLabel
    #: hours since the epoch, UTC
    hour: int
    arm: ArmName
    totals: ArmTotals


def hour_of(seconds: float) -> int:
    return int(seconds // 3600)


class Deltas(dict[Key, dict[str, Any]]):
    """Amounts to add to the totals: (policy, hour, arm) -> field of ArmTotals -> amount."""

    def add(self, key: Key, **amounts: Any) -> None:
        row = self.setdefault(key, {})
        for name, amount in amounts.items():
            if name not in row:
                row[name] = amount
            elif name in _MERGE:
                row[name] = _MERGE[name](row[name], amount)
            else:
                row[name] += amount

    def add_duration(self, key: Key, seconds: float) -> None:
        at = bisect_left(LATENCY_EDGES, seconds)
        latency = [int(number == at) for number in range(len(LATENCY_EDGES) + 1)]
        self.add(key, seconds=seconds, fastest=seconds, slowest=seconds, latency=latency)


def hours_of(connection: Connection, *, policy: str, since: int, until: int) -> list[ArmHour]:
    """The totals of a policy with since <= hour < until, by hour and arm. Reads a range of the primary key."""
    span = arm_hours.c.policy == policy, arm_hours.c.hour >= max(since, 0), arm_hours.c.hour < until
    rows = connection.execute(select(arm_hours).where(*span).order_by(arm_hours.c.hour, arm_hours.c.arm))
    label = PolicyLabel(policy)
    return [ArmHour(policy=label, hour=row.hour, arm=ArmName(row.arm), totals=totals_value(row.totals)) for row in rows]


def sums_by_arm(
    connection: Connection, *, policy: str | None, since: int, until: int, names: Collection[str]
) -> dict[ArmName, ArmTotals]:
    """Arm -> sums of the named counts over since <= hour < until. policy: None for all policies."""
    labels = select(policies.c.label) if policy is None else [policy]
    span = arm_hours.c.policy.in_(labels), arm_hours.c.hour >= max(since, 0), arm_hours.c.hour < until
    sums: dict[ArmName, dict[str, Any]] = {}
    for arm, text in connection.execute(select(arm_hours.c.arm, arm_hours.c.totals).where(*span)):
        totals = json.loads(text)
        arm_sums = sums.setdefault(ArmName(arm), {})
        for name in names:
            if name in totals:
                arm_sums[name] = arm_sums.get(name, 0) + totals[name]
    return {arm: ArmTotals(**sums[arm]) for arm in sorted(sums)}


def totals_ever(connection: Connection, *, policy: str) -> dict[ArmName, ArmTotals]:
    query = select(arm_hours).where(arm_hours.c.policy == policy, arm_hours.c.hour == EVER).order_by(arm_hours.c.arm)
    return {ArmName(row.arm): totals_value(row.totals) for row in connection.execute(query)}


def totals_value(text: str) -> ArmTotals:
    values = json.loads(text)
    if "latency" in values:
        values["latency"] = tuple(values["latency"])
    return from_json(ArmTotals, values)


def add_deltas(connection: Connection, deltas: Deltas, *, now: float) -> None:
    """Add the amounts to the hours' rows, except to hours older than KEPT, and to the rows of EVER."""
    oldest, sums = hour_of(now) - KEPT, Deltas()
    for (policy, hour, arm), amounts in deltas.items():
        sums.add((policy, EVER, arm), **amounts)
        if hour >= oldest:
            sums.add((policy, hour, arm), **amounts)
    keys = sorted(sums)
    for page in (keys[start : start + _KEYS] for start in range(0, len(keys), _KEYS)):
        for row in connection.execute(select(arm_hours).where(_KEY.in_(page))):
            sums.add((row.policy, row.hour, row.arm), **json.loads(row.totals))
        names = arm_hours.columns.keys()
        put_rows(connection, arm_hours, [dict(zip(names, (*key, canonical(sums[key])), strict=True)) for key in page])


#: name of a total -> function that merges two amounts; amounts of other totals are added
_MERGE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "latency": lambda counts, added: [x + y for x, y in zip(counts, added, strict=True)],
    "fastest": min,
    "slowest": max,
}


def add_excess(deltas: Deltas, decision: Mapping[str, Any], *, policy: str, hour: int, stage: SampleStage) -> None:
    """Add the draws of each arm minus their expected number. Draws without a choice and invalid JSON are skipped."""
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


def _updates_of(label: str) -> Select[Any]:
    query = select(
        *updates.c["seq", "arm", "value", "quality", "cost", "source", "minimum", "maximum", "preset"],
        *decisions.c["id", "made_at", "policy", "arms", "pmf", "cost_weight"],
        *IMPORTED_COLUMNS,
    ).join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
    return query.where(updates.c.policy == label)


def rewards_key(label: str) -> str:
    """Key in `reading_positions` of the last update of a ledger that the totals count."""
    return f"arm_hours:{label}"


def next_rewards(
    connection: Connection, *, label: str, weight: float, position: Mapping[str, Any], limit: int
) -> tuple[dict[str, Any], Deltas, bool]:
    """Read `limit` updates after the position `position`. Returns (new position, amounts, whether rows may remain)."""
    query = _updates_of(label).where(updates.c.seq > int(position.get("seq", 0))).order_by(updates.c.seq).limit(limit)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    deltas = Deltas()
    for row in rows:
        _count_update(row, label=label, weight=weight, deltas=deltas)
    return {"seq": rows[-1]["seq"]} if rows else dict(position), deltas, bool(rows)


def _count_update(row: Mapping[str, Any], *, label: str, weight: float, deltas: Deltas) -> None:
    if is_imported((row["is_imported"], row["unfilled_facts"])):
        return
    hour = hour_of(row["made_at"])
    sums = {"reward": reward_at(row, weight=weight), "quality": float(row["quality"]), "cost": float(row["cost"])}
    kind = "learned" if row["source"] == "explicit" else "defaulted"
    deltas.add((label, hour, row["arm"]), **{kind: 1}, **sums)
    # If another ledger decided, this ledger's policy did not draw the arm, so the draw is not compared with its pmf.
    if row["policy"] == label and kind == "learned":
        add_excess(deltas, row, policy=label, hour=hour, stage="judged")


def minutes_of(connection: Connection, *, policy: str, since: int, weight: float, limit: int) -> list[ArmHour]:
    """Like `hours_of`, but `hour` counts minutes since 1970. Returns [] for `limit` or more decisions or outcomes."""
    deltas, began = Deltas(), 60.0 * since
    for table in _COUNTED:
        page = _page(connection, table, after=(began, ""), until=math.inf, limit=limit)
        if len(page) == limit:
            return []
        _count(table, map(_minutes_as_hours, page), deltas)
    query = _updates_of(policy).order_by(updates.c.seq.desc()).limit(limit)
    for row in map(dict, connection.execute(query).mappings()):
        if row["made_at"] >= began:
            _count_update(_minutes_as_hours(row), label=policy, weight=weight, deltas=deltas)
    return [
        ArmHour(policy=PolicyLabel(policy), hour=minute, arm=ArmName(arm), totals=totals_value(canonical(amounts)))
        for (label, minute, arm), amounts in sorted(deltas.items())
        if label == policy and minute >= since
    ]


def uncounted_hours(connection: Connection, *, policy: str, weight: float, limit: int) -> list[ArmHour] | None:
    """The amounts, by hour and arm, of rows that the totals do not count yet: usually the last minute, or more if no
    learner counts. Returns None if a table has `limit` or more such rows.
    """
    deltas, seen = Deltas(), position_of(connection, TRAFFIC)
    for table in _COUNTED:
        after = tuple(seen.get(table.name, (-1.0, "")))
        page = _page(connection, table, after=after, until=math.inf, limit=limit)
        if len(page) == limit:
            return None
        _count(table, page, deltas)
    seen = position_of(connection, rewards_key(policy))
    position, rewards, _ = next_rewards(connection, label=policy, weight=weight, position=seen, limit=limit)
    if position.get("seq", 0) - seen.get("seq", 0) >= limit:
        return None
    for key, amounts in rewards.items():
        deltas.add(key, **amounts)
    return [
        ArmHour(policy=PolicyLabel(policy), hour=hour, arm=ArmName(arm), totals=totals_value(canonical(amounts)))
        for (label, hour, arm), amounts in sorted(deltas.items())
        if label == policy
    ]


def _minutes_as_hours(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its times multiplied by 60, so that `hour_of` returns minutes."""
    return {**row, **{name: 60.0 * row[name] for name in ("made_at", "decided_at") if name in row}}


#: key in `reading_positions` of the last decision and outcome that the totals count
TRAFFIC: Final = "arm_hours"
#: smallest age of rows that are counted, seconds
SETTLED_S: Final = 20.0
#: seconds after the end of an hour until its totals are compared with its rows
RECHECKED_S: Final = 900.0
_DRAW: Final = ("arm", "arms", "pmf")
#: table -> (its key, totals whose sum is the number of its rows)
_COUNTED: Final = {
    decisions: ("id", ("decided", "turns")),
    outcomes: ("decision_id", ("answered", "failed", "cancelled")),
}
_OF_DECISIONS: Final = ("decided", "turns", "explored", "forced", "killed", "undrawn", "faults")
_OF_OUTCOMES: Final = ("answered", "failed", "cancelled", "dollars", "prompt_tokens", "completion_tokens", "steps")
#: totals that `_recheck` corrects
_RECHECKED: Final = (*_OF_DECISIONS, *_OF_OUTCOMES, "seconds", "latency")


def next_traffic(
    connection: Connection, *, position: Mapping[str, Any], now: float, limit: int
) -> tuple[dict[str, Any], Deltas, bool]:
    """Read the next `limit` decisions and outcomes after `position`. Returns the same as `next_rewards`.

    If finished hours are due for a recheck, the call only rechecks them. A recheck compares the rows of an hour with
    its stored totals, so the amounts of earlier calls must be stored. Only the first two due hours are rechecked. More
    hours are due only if counting was interrupted; the later ones were then complete when they were counted.
    """
    reached: dict[str, Any] = {"checked": hour_of(now), **position}
    deltas, first = Deltas(), reached["checked"]
    if first < reached.get("due", first):
        for hour in range(first, min(first + 2, reached["due"])):
            _recheck(connection, hour, deltas=deltas, limit=limit)
        return {**reached, "checked": reached["due"]}, deltas, True
    rows_remain = False
    for table, (key, _) in _COUNTED.items():
        after = tuple(reached.get(table.name, (-1.0, "")))
        rows = _page(connection, table, after=after, until=now - SETTLED_S, limit=limit)
        _count(table, rows, deltas)
        if rows:
            reached[table.name] = [rows[-1]["made_at"], rows[-1][key]]
        rows_remain = rows_remain or len(rows) == limit
    if not rows_remain:
        reached["due"] = hour_of(now - RECHECKED_S)
    return reached, deltas, rows_remain or first < reached["due"]


def _page(
    connection: Connection, table: Table, *, after: tuple[Any, ...], until: float, limit: int
) -> list[Mapping[str, Any]]:
    if table is decisions:
        names = decisions.c["id", "made_at", "policy", *_DRAW, "explored", "turn_of"]
        query = select(*names, decisions.c.fault.is_not(None).label("faulty"), *FACT_COLUMNS)
    else:
        names = outcomes.c["decision_id", "made_at", "status", "stop_reason", "cost", "steps"]
        query = select(*names, *decisions.c["policy", *_DRAW], *IMPORTED_COLUMNS)
        query = query.add_columns(decisions.c.made_at.label("decided_at"))
        query = query.join_from(outcomes, decisions, decisions.c.id == outcomes.c.decision_id)
    time, key = table.c.made_at, table.c[_COUNTED[table][0]]
    # The first condition lets the database use the index, which has no ids.
    query = query.where(time >= after[0], time < until, tuple_(time, key) > tuple_(*after))
    return [dict(row) for row in connection.execute(query.order_by(time, key).limit(limit)).mappings()]


def _count(table: Table, rows: Iterable[Mapping[str, Any]], deltas: Deltas) -> None:
    for row in rows:
        if is_imported((row["is_imported"], row["unfilled_facts"])):
            continue
        key = row["policy"], hour_of(row["made_at"]), row["arm"]
        if table is decisions and row["turn_of"] is not None:
            deltas.add(key, turns=1)
        elif table is decisions:
            facts = QueriedFacts.of_row(row)
            flags = {"explored": row["explored"], "faults": row["faulty"]}
            by = facts.arm_by
            flags |= {"forced": by == "caller", "killed": by == "kill switch"}
            is_undrawn = by in NOT_BY_POLICY or (facts.budget_factor or 0.0) >= MOST_FACTOR
            flags["undrawn"] = is_undrawn and not (flags["forced"] or flags["killed"])
            deltas.add(key, decided=1, **{name: 1 for name, counts in flags.items() if counts})
            add_excess(deltas, row, policy=key[0], hour=key[1], stage="drawn")
            if facts.has_callers_id:
                add_excess(deltas, row, policy=key[0], hour=key[1], stage="named")
        else:
            _count_outcome(key, row, deltas)
            add_excess(deltas, row, policy=key[0], hour=hour_of(row["decided_at"]), stage="ended")


def _count_outcome(key: tuple[str, int, str], row: Mapping[str, Any], deltas: Deltas) -> None:
    cost = own_cost(row["cost"])
    is_cancelled = row["stop_reason"] == CANCELLED
    status = "failed" if row["status"] == "failed" else "answered"
    amounts = {name: getattr(cost, name) for name in ("dollars", "prompt_tokens", "completion_tokens")}
    deltas.add(key, **{"cancelled" if is_cancelled else status: 1}, **amounts, steps=row["steps"])
    if cost.seconds_total > 0.0 and not is_cancelled:
        deltas.add_duration(key, cost.seconds_total)


def _recheck(connection: Connection, hour: int, *, deltas: Deltas, limit: int) -> None:
    """Compare the totals of a finished hour with its rows, and add the missing amounts."""
    since, until = 3600.0 * hour, 3600.0 * (hour + 1)
    query = select(arm_hours).where(arm_hours.c.policy.in_(select(policies.c.label)), arm_hours.c.hour == hour)
    rows = connection.execute(query)
    stored: dict[tuple[str, str], dict[str, Any]] = {(row.policy, row.arm): json.loads(row.totals) for row in rows}
    for table, (key, names) in _COUNTED.items():
        span = table.c.made_at >= since, table.c.made_at < until
        count = connection.execute(select(func.count()).select_from(table).where(*span)).scalar_one()
        if count <= sum(totals.get(name, 0) for totals in stored.values() for name in names):
            continue
        recounted, after = Deltas(), (since, "")
        while page := _page(connection, table, after=after, until=until, limit=limit):
            _count(table, page, recounted)
            after = (page[-1]["made_at"], page[-1][key])
        for (policy, _, arm), totals in recounted.items():
            before = stored.get((policy, arm), {})
            if sum(totals.get(name, 0) for name in names) > sum(before.get(name, 0) for name in names):
                deltas.add((policy, hour, arm), **_missing(totals, stored=before))


def _missing(totals: Mapping[str, Any], *, stored: Mapping[str, Any]) -> dict[str, Any]:
    missing = {name: totals[name] for name in _RECHECKED if name in totals}
    for name in missing.keys() & stored.keys():
        now, before = missing[name], stored[name]
        missing[name] = [a - b for a, b in zip(now, before, strict=True)] if name == "latency" else now - before
    return missing | {name: totals[name] for name in ("fastest", "slowest") if name in totals}


#: number of rows that a transaction reads
PAGE_ROWS: Final = 2000
LEASE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    #: time of the last decision that was counted; None if no decision was
    decided_to: float | None
    #: seconds by which the totals are behind the newest decision; 0 if all decisions are counted
    behind_s: float
    updates_behind: int


class TotalsExtender:
    """Adds new rows to the totals. holder: name of this process in the lease. weight: the setting reward.weight."""

    def __init__(
        self, database: Database, *, holder: str, weight: float, clock: Callable[[], float] | None = None
    ) -> None:
        deadlines = DeadlineClock(database)
        self.database, self.holder = database, holder
        self.clock, self._for_deletion = clock or deadlines.now, clock or deadlines.for_deletion
        self._weight = weight
        self._lease = Lease(database=database, name="arm_hours")
        self._forgot_at = -1

    def extend(self, *, seconds: float = 5.0) -> bool:
        """Count new rows for at most `seconds`. Returns True if rows remain for this process. Raises StoreError."""
        if not self._lease.acquire(holder=self.holder, lease_s=LEASE_S):
            return False
        give_up = time.monotonic() + seconds
        in_use = select(policies.c.label).where(policies.c.retired_at.is_(None)).order_by(policies.c.label)
        with self.database.read() as connection:
            unfinished = ["", *connection.execute(in_use).scalars()]
        while unfinished and time.monotonic() < give_up:
            unfinished = [label for label in unfinished if self._step(label)]
        self._forget()
        return bool(unfinished)

    def release(self) -> None:
        self._lease.release(holder=self.holder)

    def _step(self, label: str) -> bool:
        """Count a page of a ledger's updates; with `label` "" of decisions and outcomes. Returns False at the end."""
        reader = rewards_key(label) if label else TRAFFIC
        with self.database.read() as connection:
            seen = position_of(connection, reader)
            if label:
                page = next_rewards(connection, label=label, weight=self._weight, position=seen, limit=PAGE_ROWS)
            else:
                page = next_traffic(connection, position=seen, now=self.clock(), limit=PAGE_ROWS)
        position, deltas, rows_remain = page
        return position != seen and self._write(reader, deltas, position=position) and rows_remain

    def _write(self, reader: str, deltas: Deltas, *, position: Mapping[str, Any]) -> bool:
        """Store amounts and position in one transaction. Returns False if another process holds the lease."""
        now = self.clock()
        with self.database.write() as connection:
            if not self._lease.is_held(connection, holder=self.holder):
                return False
            move_position(connection, reader, position=position, now=now)
            add_deltas(connection, deltas, now=now)
        return self._lease.acquire(holder=self.holder, lease_s=LEASE_S)

    def _forget(self) -> None:
        now = self._for_deletion()
        if self._forgot_at == hour_of(now):
            return
        with self.database.write() as connection:
            if self._lease.is_held(connection, holder=self.holder):
                old = arm_hours.c.hour >= 0, arm_hours.c.hour < hour_of(now) - KEPT
                connection.execute(delete(arm_hours).where(*old))
                forget_spending(connection, now=now)
                forget_judged(connection, now=now)
        self._forgot_at = hour_of(now)


def totals_progress(connection: Connection, *, label: str, newest: float | None, last_seq: int) -> Progress:
    """How far the totals are behind the rows. newest: time of the newest decision. last_seq: the ledger's last seq."""
    position = position_of(connection, TRAFFIC).get("decisions")
    decided_to = None if position is None or position[0] < 0 else float(position[0])
    reached = decided_to
    if newest is not None and reached is None:  # nothing is counted yet: the delay begins at the oldest decision
        reached = connection.execute(select(func.min(decisions.c.made_at))).scalar()
    behind_s = 0.0 if newest is None or reached is None else max(0.0, newest - reached)
    seq = int(position_of(connection, rewards_key(label)).get("seq", 0))
    return Progress(decided_to=decided_to, behind_s=behind_s, updates_behind=max(0, last_seq - seq))
