"""Partial indexes of `waiting` and `jobs`. Answers without feedback and jobs claimed at once have no entry in them."""

from alembic import op

from ragbandit.router.storage.sql.tables import jobs, waiting

revision = "1005"
down_revision = "1004"
oldest_code = "1004"


def upgrade() -> None:
    for index in (*waiting.indexes, *jobs.indexes):
        if index.info.get("since") == revision:
            index.create(op.get_bind())
    # Last, since PostgreSQL then blocks readers of the table until the end of the transaction.
    for name, table in (("waiting_ready", "waiting"), ("jobs_made_at", "jobs"), ("jobs_tenant", "jobs")):
        op.drop_index(name, table)
