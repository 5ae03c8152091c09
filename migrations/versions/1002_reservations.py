"""Jobs of answers reserve their estimated cost, so that budgets count answers that still run."""

from alembic import op

from ragbandit.router.storage.sql.tables import jobs

revision = "1002"
down_revision = "1001"
oldest_code = "1001"


def upgrade() -> None:
    for name in ("api_key", "reserved"):
        op.add_column("jobs", jobs.c[name])
    next(index for index in jobs.indexes if index.name == "jobs_reserved").create(op.get_bind())
