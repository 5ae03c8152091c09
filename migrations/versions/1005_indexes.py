"""Partial indexes of `waiting` and `jobs`, without entries of answers without feedback and of jobs claimed at once."""

from alembic import op

from ragbandit.router.storage.sql.tables import jobs, waiting

revision = "1005"
down_revision = "1004"
oldest_code = "1004"


def upgrade() -> None:
    for index in (*waiting.indexes, *jobs.indexes):
        if index.info.get("since") == revision:
            index.create(op.get_bind())
    # Last, since PostgreSQL blocks readers of a table from here to the end of the transaction.
    for name, table in (("waiting_ready", "waiting"), ("jobs_made_at", "jobs"), ("jobs_tenant", "jobs")):
        op.drop_index(name, table)
