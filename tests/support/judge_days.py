"""What waits for the judge, and what a day brought, as a status reads it."""

from ragbandit.router.storage.jobs.judge_days import today
from ragbandit.router.storage.judgements import JudgeState
from ragbandit.router.storage.sql.counters import ALL, stored_counts
from ragbandit.router.storage.sql.database import Database


def judge_state(database: Database, *, now: float) -> JudgeState:
    """The state of the judge on the day of `now`."""
    with database.read() as connection:
        return JudgeState(waiting=stored_counts(connection, label=ALL)["judge_due"], today=today(connection, now=now))
