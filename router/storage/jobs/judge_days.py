"""Work and cost of the judge by UTC day, in the table `judge_days`."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import RowMapping, delete, func, select

from ragbandit.router.storage.sql.bulk_insert import insert_into
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import DAY_S, day_of
from ragbandit.router.storage.sql.tables import judge_days

_COUNTS: Final = tuple(column.name for column in judge_days.columns if column.name not in ("day", "shard"))


def move_day(
    connection: Connection, counts: Mapping[str, float] | None = None, *, now: float, shard: int = 0
) -> RowMapping:
    """Add counts to the row of a shard for the day of `now`. Returns the row, locked until the transaction ends."""
    counts = counts or {}
    day = day_of(now)
    values = {"day": day, "shard": shard, **dict.fromkeys(_COUNTS, 0), **counts}
    move = insert_into(connection, judge_days).values(**values)
    added = {name: judge_days.c[name] + move.excluded[name] for name in _COUNTS}
    move = move.on_conflict_do_update(index_elements=judge_days.primary_key, set_=added)
    row = connection.execute(move.returning(judge_days)).mappings().one()
    if counts.get("begun") == row["begun"]:  # the first judgement of the day
        connection.execute(delete(judge_days).where(judge_days.c.day < day_of(now - 400 * DAY_S)))
    return row


def mean_dollars(connection: Connection, *, since: float) -> float | None:
    """Mean dollars of a judgement on the UTC days from `since` on; None without judgements."""
    sums = (func.sum(judge_days.c.dollars), func.sum(judge_days.c.begun))
    dollars, begun = connection.execute(select(*sums).where(judge_days.c.day >= day_of(since))).one()
    return float(dollars) / float(begun) if begun and begun > 0 else None


def today(connection: Connection, *, now: float) -> dict[str, Any]:
    """The judge's counts on the day of `now`, summed over all shards."""
    sums = [func.coalesce(func.sum(judge_days.c[name]), 0).label(name) for name in _COUNTS]
    row = connection.execute(select(*sums).where(judge_days.c.day == day_of(now))).mappings().one()
    return {name: float(row[name]) if name == "dollars" else int(row[name]) for name in _COUNTS}
