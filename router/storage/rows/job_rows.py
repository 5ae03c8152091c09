"""Rows of `jobs`: decisions that wait for the judge or for a check.

A row comes in the transaction that stores the outcome, and leaves in the one that stores the score or gives it up.
Whoever works on one claims it for a while: one that dies leaves nothing behind but an attempt. Rows are locked after
those of `waiting`.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Literal

from sqlalchemy import Connection, RowMapping, Select, delete, func, select, update

from ragbandit.router.storage.sql.bulk_insert import insert_into, insert_rows
from ragbandit.router.storage.sql.counters import ALL, Moves
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import counters, jobs, judge_days
from ragbandit.shared.types import CANCELLED, IMPORTED, DecisionId, Json, Outcome

JobKind = Literal["judge", "check"]
#: why a job is not begun now: nobody waits for it any more; it is claimed, or tried again later; it waited too long; it
#: was tried too often; the day's budget is spent
Refused = Literal["gone", "later", "expired", "given_up", "budget"]

#: answers that wait for a check at once; while there are as many, further ones are not checked
MAX_CHECKS: Final = 10_000
#: times that an answer is begun to be checked
CHECK_ATTEMPTS: Final = 3
#: an answer that waited that long is not checked any more, seconds
CHECK_EXPIRE_S: Final = 2 * 86400.0
#: failures that say nothing of the arm, or of a decision that nobody can read
_NOT_ITS_FAULT: Final = frozenset({CANCELLED, IMPORTED, "unknown_arm", "unreadable"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A decision that waits."""

    key: DecisionId
    #: tries that began
    attempts: int
    #: what its kind keeps
    facts: Mapping[str, Any]


def is_judgeable(outcome: Outcome) -> bool:
    """Whether there is an answer to judge, or a failure of the arm. A caller may keep its answers to itself."""
    if outcome.answer is not None and outcome.answer.strip():
        return outcome.stop_reason != IMPORTED
    return outcome.stop_reason not in _NOT_ITS_FAULT and (outcome.run_by == "worker" or outcome.status != "answered")


def add_jobs(
    connection: Connection, group: Collection[Outcome], *, kind: JobKind, facts: Mapping[str, Json] | None = None
) -> None:
    """Let the decisions of these new outcomes wait."""
    text = json.dumps(facts or {})
    rows = [
        {"kind": kind, "key": one.decision_id, "made_at": one.made_at, "due_at": one.made_at, "attempts": 0}
        | {"facts": text}
        for one in group
    ]
    insert_rows(connection, jobs, rows)


def add_checks(connection: Connection, group: Iterable[Outcome]) -> None:
    """Let these new outcomes wait for the check, as far as there is room: answers, and failures of an arm."""
    chosen = [one for one in sorted(group, key=lambda one: one.decision_id) if is_judgeable(one)]
    if chosen:
        add_jobs(connection, chosen[: max(0, MAX_CHECKS - count_jobs(connection, kind="check"))], kind="check")


def count_jobs(connection: Connection, *, kind: JobKind) -> int:
    """Decisions that wait, counted one by one."""
    return int(connection.execute(select(func.count()).select_from(jobs).where(jobs.c.kind == kind)).scalar_one())


def drop_jobs(connection: Connection, ids: Iterable[str], *, kind: JobKind) -> list[str]:
    """Let these decisions wait no more; those that did."""
    gone = delete(jobs).where(jobs.c.kind == kind, jobs.c.key.in_(sorted(ids))).returning(jobs.c.key)
    return list(connection.execute(gone).scalars())


def due_jobs(database: Database, *, kind: JobKind, now: float, limit: int) -> list[DecisionId]:
    """Decisions that may be claimed now, those first that have been due longest. Raises StoreError."""
    due = select(jobs.c.key).where(jobs.c.kind == kind, jobs.c.due_at <= now)
    with database.read() as connection:
        found = connection.execute(due.order_by(jobs.c.due_at, jobs.c.key).limit(limit))
        return [DecisionId(key) for key in found.scalars()]


def old_jobs(*, kind: JobKind, before: float) -> Select[Any]:
    """The ids of decisions whose outcomes came before that time."""
    return select(jobs.c.key).where(jobs.c.kind == kind, jobs.c.made_at <= before)


def lock_job(
    connection: Connection, key: str, *, kind: JobKind, now: float, attempts: int, expire_s: float
) -> Job | Refused:
    """A decision that may be begun now, locked until the transaction ends, or why not.

    attempts, expire_s: tries and seconds after which it is given up.
    """
    locked = select(jobs).where(jobs.c.kind == kind, jobs.c.key == key).with_for_update()
    row = connection.execute(locked).mappings().first()
    if row is None or row["due_at"] > now:
        return "gone" if row is None else "later"
    if row["made_at"] <= now - expire_s:
        return "expired"
    if row["attempts"] >= attempts:
        return "given_up"
    return Job(key=DecisionId(key), attempts=row["attempts"], facts=json.loads(row["facts"]))


def change_job(connection: Connection, key: str, *, kind: JobKind, attempt: int, **values: float | str) -> None:
    """Change a row unless somebody else has claimed it since. attempt: the tries that began when it was claimed."""
    mine = update(jobs).where(jobs.c.kind == kind, jobs.c.key == key, jobs.c.attempts == attempt)
    connection.execute(mine.values(**values))


def claim_check(database: Database, key: DecisionId, *, now: float, for_s: float) -> Job | Refused:
    """Claim an answer that is due for so many seconds, or say why not; what is over waits no more."""
    with database.write() as connection:
        job = lock_job(connection, key, kind="check", now=now, attempts=CHECK_ATTEMPTS, expire_s=CHECK_EXPIRE_S)
        if isinstance(job, Job):
            change_job(
                connection, key, kind="check", attempt=job.attempts, attempts=job.attempts + 1, due_at=now + for_s
            )
        elif job in ("expired", "given_up"):
            drop_jobs(connection, [key], kind="check")
    return job


def expire_checks(database: Database, *, now: float) -> int:
    """Let answers wait no more that waited too long for the check; how many. Raises StoreError."""
    old = old_jobs(kind="check", before=now - CHECK_EXPIRE_S)
    with database.read() as connection:
        if connection.execute(old.limit(1)).first() is None:
            return 0
    with database.write() as connection:
        return len(drop_jobs(connection, connection.execute(old).scalars(), kind="check"))


DAY_S: Final = 86_400
#: another draw than the arm's, which is the sha256 of the id alone
_SALT: Final = b"ragbandit judge:"
#: days that are kept
_KEPT_DAYS: Final = 400

_COUNTS: Final = tuple(column.name for column in judge_days.columns if column.name not in ("day", "shard"))


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
    values = {"day": day, "shard": shard, **dict.fromkeys(_COUNTS, 0), **counts}
    move = insert_into(connection, judge_days).values(**values)
    added = {name: judge_days.c[name] + move.excluded[name] for name in _COUNTS}
    move = move.on_conflict_do_update(index_elements=judge_days.primary_key, set_=added)
    row = connection.execute(move.returning(judge_days)).mappings().one()
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
