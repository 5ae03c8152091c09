"""Rows of `jobs`: decisions that wait for the judge or for a check.

A row comes in the transaction that stores the outcome, and leaves in the one that stores the score or gives it up.
Whoever works on one claims it for a while: one that dies leaves nothing behind but an attempt. Rows are locked after
those of `waiting`.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, Select, delete, func, select, update

from ragbandit.router.storage.sql.bulk_insert import insert_rows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import jobs
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
