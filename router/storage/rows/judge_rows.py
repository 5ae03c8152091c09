"""Which decisions wait for the judge, and rows of `judge_days`: what it did in a day.

Which decisions are judged follows from their ids.

Every transaction locks a day before rows of `jobs`, and both after rows of `waiting` and before counters, so that
no two of them wait for each other in a circle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, delete, func, select, text

from ragbandit.router.storage.rows.job_rows import add_jobs, drop_jobs, is_judgeable
from ragbandit.router.storage.sql.counters import ALL, Moves
from ragbandit.router.storage.sql.tables import counters, judge_days
from ragbandit.shared.types import Outcome

DAY_S: Final = 86_400
#: another draw than the arm's, which is the sha256 of the id alone
_SALT: Final = b"ragbandit judge:"
#: days that are kept
_KEPT_DAYS: Final = 400

_COUNTS: Final = tuple(column.name for column in judge_days.columns if column.name not in ("day", "shard"))
_MOVE: Final = text(
    f"INSERT INTO judge_days (day, shard, {', '.join(_COUNTS)}) "  # noqa: S608 - names of ours
    f"VALUES (:day, :shard, {', '.join(f':{name}' for name in _COUNTS)}) "
    f"ON CONFLICT (day, shard) DO UPDATE SET {', '.join(f'{n} = judge_days.{n} + excluded.{n}' for n in _COUNTS)}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeSample:
    """Which decisions are judged: this share of them, as long as fewer than max_waiting wait."""

    share: float
    max_waiting: int


def is_sampled(decision_id: str, *, share: float) -> bool:
    """Whether a decision is among the share that is judged: the same on every host, whatever the arm."""
    drawn = int.from_bytes(sha256(_SALT + decision_id.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return drawn < share * 2.0**64


def sample_outcomes(
    connection: Connection, group: Iterable[Outcome], *, sample: JudgeSample, moves: Moves, shard: int
) -> None:
    """Let those of these new outcomes wait for the judge that are sampled, as far as there is room.

    shard: of `counters`, that this process moves.
    """
    chosen = [
        outcome
        for outcome in sorted(group, key=lambda outcome: outcome.decision_id)
        if is_sampled(outcome.decision_id, share=sample.share) and is_judgeable(outcome)
    ]
    if not chosen:
        return
    room = max(0, sample.max_waiting - waiting_for_judge(connection))
    if len(chosen) > room:
        move_day(connection, {"skipped": len(chosen) - room}, now=chosen[0].made_at, shard=1 + shard)
    add_jobs(connection, chosen[:room], kind="judge", facts={"share": sample.share, "failures": 0})
    moves.add("judge_due", len(chosen[:room]))


def drop_due(connection: Connection, ids: Iterable[str], *, moves: Moves) -> list[str]:
    """Let these decisions wait for the judge no more; those that did."""
    dropped = drop_jobs(connection, ids, kind="judge")
    moves.add("judge_due", -len(dropped))
    return dropped


def waiting_for_judge(connection: Connection) -> int:
    """Decisions that wait for the judge, as they are counted."""
    here = counters.c.label == ALL, counters.c.name == "judge_due"
    return int(connection.execute(select(func.coalesce(func.sum(counters.c.value), 0)).where(*here)).scalar_one())


def move_day(
    connection: Connection, counts: Mapping[str, float] | None = None, *, now: float, shard: int = 0
) -> RowMapping:
    """Add to the counts of the day of `now`; the row as it is then. It stays locked until the transaction ends."""
    counts = counts or {}
    day = day_of(now)
    connection.execute(_MOVE, {"day": day, "shard": shard, **dict.fromkeys(_COUNTS, 0), **counts})
    here = judge_days.c.day == day, judge_days.c.shard == shard
    row = connection.execute(select(judge_days).where(*here)).mappings().one()
    if counts.get("begun") == row["begun"]:  # the first of the day
        connection.execute(delete(judge_days).where(judge_days.c.day < day_of(now - _KEPT_DAYS * DAY_S)))
    return row


def today(connection: Connection, *, now: float) -> dict[str, Any]:
    """The counts of the day of `now`, over all processes."""
    sums = [func.coalesce(func.sum(judge_days.c[name]), 0).label(name) for name in _COUNTS]
    row = connection.execute(select(*sums).where(judge_days.c.day == day_of(now))).mappings().one()
    return {name: float(row[name]) if name == "dollars" else int(row[name]) for name in _COUNTS}


def day_of(now: float) -> str:
    """The day of this time in UTC, as "2026-11-21"."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def next_day(now: float) -> float:
    """When the day after that of `now` begins in UTC."""
    return (now // DAY_S + 1) * DAY_S
