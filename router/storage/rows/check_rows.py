"""Rows of `check_due`: answers that wait for the check of `reward.check`.

A row comes in the transaction that stores the outcome, and leaves in the one that stores what the check says. Whoever
works on it claims it for a while: one that dies leaves nothing behind but an attempt. Rows are locked after those of
`waiting`.
"""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection, delete, func, or_, select, update

from ragbandit.router.storage.rows.judge_rows import is_judgeable
from ragbandit.router.storage.sql.bulk_insert import insert_rows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import check_due
from ragbandit.shared.types import DecisionId, Outcome

#: answers that wait at once; while there are as many, further ones are not checked
MAX_WAITING: Final = 10_000
#: times that an answer is begun to be checked
ATTEMPTS: Final = 3
#: an answer that waited that long is not checked any more, seconds
EXPIRE_S: Final = 2 * 86400.0


def await_check(connection: Connection, group: Iterable[Outcome]) -> None:
    """Let these new outcomes wait for the check, as far as there is room: answers, and failures of an arm."""
    rows = [
        {"decision_id": outcome.decision_id, "due_at": outcome.made_at, "made_at": outcome.made_at, "attempts": 0}
        for outcome in sorted(group, key=lambda outcome: outcome.decision_id)
        if is_judgeable(outcome)
    ]
    if rows:
        insert_rows(connection, check_due, rows[: max(0, MAX_WAITING - waiting_for_check(connection))])


def waiting_for_check(connection: Connection) -> int:
    """Answers that wait for the check."""
    return int(connection.execute(select(func.count()).select_from(check_due)).scalar_one())


def drop_check(connection: Connection, ids: Iterable[str]) -> int:
    """Let these decisions wait for the check no more; how many did."""
    return connection.execute(delete(check_due).where(check_due.c.decision_id.in_(list(ids)))).rowcount


def claim_check(database: Database, *, now: float, for_s: float) -> DecisionId | None:
    """The answer that has been due longest, claimed for so many seconds; None if none is due. Raises StoreError."""
    due = select(check_due).where(check_due.c.due_at <= now, check_due.c.attempts < ATTEMPTS)
    with database.read() as connection:  # most looks cost no write
        if connection.execute(due.limit(1)).first() is None:
            return None
    with database.write() as connection:
        row = connection.execute(due.order_by(check_due.c.due_at).limit(1).with_for_update(skip_locked=True)).first()
        if row is None:
            return None
        mine = update(check_due).where(check_due.c.decision_id == row.decision_id)
        connection.execute(mine.values(attempts=row.attempts + 1, due_at=now + for_s))
    return DecisionId(row.decision_id)


def expire_checks(database: Database, *, now: float) -> int:
    """Let answers wait no more that waited too long or were tried too often; how many. Raises StoreError."""
    over = or_(check_due.c.made_at <= now - EXPIRE_S, (check_due.c.attempts >= ATTEMPTS) & (check_due.c.due_at <= now))
    with database.read() as connection:
        if connection.execute(select(check_due.c.decision_id).where(over).limit(1)).first() is None:
            return 0
    with database.write() as connection:
        return connection.execute(delete(check_due).where(over)).rowcount
