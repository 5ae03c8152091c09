"""Claims in the store: which process runs which decision."""

from sqlalchemy import select

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.types import DecisionId


def claims(database: Database) -> dict[DecisionId, str]:
    """The decisions that are run now -> key of the process that runs each."""
    query = select(jobs.c.decision_id, jobs.c.claimed_by).where(jobs.c.kind == "answer", jobs.c.claimed_by.is_not(None))
    with database.read() as connection:
        return {DecisionId(row.decision_id): row.claimed_by for row in connection.execute(query)}
