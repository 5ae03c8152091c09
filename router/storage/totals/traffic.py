"""Reader of decisions and outcomes, in the order of (made_at, id).

Rows are read once they are SETTLED_S old: whoever made them has committed them by then. What came later all the same
(an outcome that a worker could not write for minutes, a router whose clock is behind) is found when its hour is looked
at again, RECHECKED_S after its end; what is later than that is in no count of traffic, and never in two.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Table, func, select, tuple_

from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.tables import arm_hours, decisions, outcomes, policies
from ragbandit.router.storage.totals.excesses import add_excess
from ragbandit.router.storage.totals.rows import Deltas, TotalsPage, hour_of
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


def next_traffic(connection: Connection, *, seen: Mapping[str, Any], now: float, limit: int) -> TotalsPage:
    """The next page after `seen`: `limit` decisions and as many outcomes. connection: of a read transaction."""
    positions = {name: tuple(seen.get(name, _START)) for name in ("decisions", "outcomes")}
    to: dict[str, Any] = {"checked": hour_of(now), **seen, **{k: list(v) for k, v in positions.items()}}
    deltas = Deltas()
    settled = hour_of(now - RECHECKED_S)
    due = to["checked"] < settled
    end = 3600.0 * min(to["checked"] + 2, settled)
    if due and all(position[0] >= end for position in positions.values()):
        return _rechecked(connection, seen=seen, to=to, settled=settled, limit=limit)
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
        return _rechecked(connection, seen=seen, to=to, settled=settled, limit=limit)
    return TotalsPage(seen=seen, to=to, deltas=deltas, more=more)


def _rechecked(
    connection: Connection, *, seen: Mapping[str, Any], to: dict[str, Any], settled: int, limit: int
) -> TotalsPage:
    """A step that looks at hours again, and at nothing else: what it compares must have been written.

    Where more than two are due the reader was away: what is later than the second was read long after its end.
    """
    deltas = Deltas()
    for hour in range(to["checked"], min(to["checked"] + 2, settled)):
        _recheck(connection, hour, deltas=deltas, limit=limit)
    return TotalsPage(seen=seen, to={**to, "checked": settled}, deltas=deltas, more=True)


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
    for (policy, hour, arm), totals in fresh.by_key().items():
        known = stored.get((policy, arm), {})
        if sum(totals.get(name, 0) for name in names) <= sum(known.get(name, 0) for name in names):
            continue
        missed: dict[str, Any] = {
            name: _less(totals[name], known.get(name)) for name in _COUNTED_AGAIN if name in totals
        }
        extremes = {name: totals[name] for name in ("fastest", "slowest") if name in totals}
        deltas.merge((policy, hour, arm), missed | extremes)


def _less(now: Any, before: Any) -> Any:
    if before is None:
        return now
    return [a - b for a, b in zip(now, before, strict=True)] if isinstance(now, list) else now - before
