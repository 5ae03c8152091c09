"""Rows of `arm_hours`.

A row holds what one arm did under one policy in an hour. Beside its hours every arm has one row with all that was ever
counted (hour EVER): a sum over all time is a look-up, and never falls when old hours are forgotten. Hours older than
KEPT are deleted.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from operator import add
from typing import Any, Final

from sqlalchemy import Connection, delete, select, tuple_

from ragbandit.router.storage.rows.conversion import arms_value, canonical, reward_at, scores_value
from ragbandit.router.storage.sql.database import insert_into
from ragbandit.router.storage.sql.tables import arm_hours, decisions, updates
from ragbandit.shared.types import IMPORTED, LATENCY_EDGES, ArmName, ArmTotals, PolicyLabel, SampleStage

#: the hour of the rows with all that was ever counted
EVER: Final = -1
#: hours for which an hour is kept
KEPT: Final = 400 * 24
#: keys of one statement
_PAGE: Final = 500

#: (policy, hour, arm)
Key = tuple[str, int, str]


_KEY: Final = tuple_(arm_hours.c.policy, arm_hours.c.hour, arm_hours.c.arm)
_NAMES: Final = frozenset(field.name for field in fields(ArmTotals))


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


def latency_bucket(seconds: float) -> int:
    """The place of a latency in `ArmTotals.latency`."""
    return next((bucket for bucket, edge in enumerate(LATENCY_EDGES) if seconds <= edge), len(LATENCY_EDGES))


class Deltas(dict[Key, dict[str, Any]]):
    """What is to be added to rows of `arm_hours`."""

    def add(self, key: Key, **amounts: Any) -> None:
        """Add amounts, by the names of ArmTotals, to a row."""
        row = self.setdefault(key, {})
        for name, amount in amounts.items():
            row[name] = _BOTH.get(name, add)(row[name], amount) if name in row else amount

    def took(self, key: Key, seconds: float) -> None:
        """Add an outcome that took so long."""
        latency = [0] * (len(LATENCY_EDGES) + 1)
        latency[latency_bucket(seconds)] = 1
        self.add(key, seconds=seconds, latency=latency, fastest=seconds, slowest=seconds)


def hours_of(connection: Connection, *, policy: str, since: int, until: int) -> list[ArmHour]:
    """The rows of one policy with since <= hour < until, by hour and arm. A range of the primary key."""
    here = arm_hours.c.policy == policy, arm_hours.c.hour >= max(since, 0), arm_hours.c.hour < until
    rows = connection.execute(select(arm_hours).where(*here).order_by(arm_hours.c.hour, arm_hours.c.arm))
    return [_hour(row) for row in rows]


def summed(
    connection: Connection, *, policy: str, since: int, until: int, names: Collection[str]
) -> dict[ArmName, ArmTotals]:
    """Arm -> the sums of some counts over since <= hour < until; quicker than all of `hours_of`."""
    here = arm_hours.c.policy == policy, arm_hours.c.hour >= max(since, 0), arm_hours.c.hour < until
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


def _hour(row: Any) -> ArmHour:
    return ArmHour(policy=PolicyLabel(row.policy), hour=row.hour, arm=ArmName(row.arm), totals=totals_value(row.totals))


def totals_value(text: str) -> ArmTotals:
    """The totals of their JSON; of a row of a newer version what this one knows."""
    values = {name: value for name, value in json.loads(text).items() if name in _NAMES}
    if "latency" in values:
        values["latency"] = tuple(values["latency"])
    return ArmTotals(**values)


def add_deltas(connection: Connection, deltas: Deltas, *, now: float) -> None:
    """Add them to the rows, in the caller's write transaction, which alone writes here (it holds the lease).

    What belongs to an hour that is deleted goes to EVER alone.
    """
    oldest, sums = hour_of(now) - KEPT, Deltas()
    for (policy, hour, arm), amounts in deltas.items():
        sums.add((policy, EVER, arm), **amounts)
        if hour >= oldest:
            sums.add((policy, hour, arm), **amounts)
    keys = sorted(sums)
    for start in range(0, len(keys), _PAGE):
        rows = connection.execute(select(arm_hours).where(_KEY.in_(keys[start : start + _PAGE])))
        for row in rows:
            sums.add((row.policy, row.hour, row.arm), **json.loads(row.totals))
        _write(connection, {key: sums[key] for key in keys[start : start + _PAGE]})


#: how amounts that are not added are put together
_BOTH: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "latency": lambda before, more: [x + y for x, y in zip(before, more, strict=True)],
    "fastest": min,
    "slowest": max,
}


def _write(connection: Connection, rows: Mapping[Key, Mapping[str, Any]]) -> None:
    insert = insert_into(connection, arm_hours)
    changed = {"totals": insert.excluded.totals}
    insert = insert.on_conflict_do_update(index_elements=["policy", "hour", "arm"], set_=changed)
    values = [
        {"policy": policy, "hour": hour, "arm": arm, "totals": canonical(dict(totals))}
        for (policy, hour, arm), totals in rows.items()
    ]
    connection.execute(insert, values)


def forget_hours(connection: Connection, *, now: float) -> None:
    """Delete the hours that are too old."""
    connection.execute(delete(arm_hours).where(arm_hours.c.hour >= 0, arm_hours.c.hour < hour_of(now) - KEPT))


def add_excess(deltas: Deltas, decision: Mapping[str, Any], *, policy: str, hour: int, stage: SampleStage) -> None:
    """Count one row, in the hour of its decision; nothing of one that had no choice, or whose draw cannot be read.

    decision: with the columns arm, arms and pmf.
    """
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
    """The next updates of a ledger, `limit` at most: where the reader is after them, what they add, if there is more.

    connection: of a read transaction. weight: reward.weight, at which rewards are summed.
    """
    rows = _page(connection, label=label, after=int(seen.get("seq", 0)), limit=limit)
    deltas = Deltas()
    for row in rows:
        _count(row, label=label, weight=weight, deltas=deltas)
    return {"seq": rows[-1]["seq"]} if rows else dict(seen), deltas, bool(rows)


def _page(connection: Connection, *, label: str, after: int, limit: int) -> list[dict[str, Any]]:
    columns = [updates.c[name] for name in _UPDATE] + [decisions.c[name] for name in _DECISION]
    query = select(*columns).join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
    query = query.where(updates.c.policy == label, updates.c.seq > after).order_by(updates.c.seq).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]


def _count(row: Mapping[str, Any], *, label: str, weight: float, deltas: Deltas) -> None:
    if f'"{IMPORTED}":' in row["facts"]:
        return
    hour = hour_of(row["made_at"])
    sums = {"reward": reward_at(row, weight=weight), "quality": float(row["quality"]), "cost": float(row["cost"])}
    squares = {f"{name}_squares": value * value for name, value in sums.items()}
    kind = "learned" if row["source"] == "explicit" else "defaulted"
    deltas.add((label, hour, row["arm"]), **{kind: 1}, **sums, **squares)
    # Where another ledger decided, this one's policy did not serve it.
    if row["policy"] == label and kind == "learned":
        add_excess(deltas, row, policy=label, hour=hour, stage="judged")
