"""Retention: PostgreSQL no longer checks references for which it would scan a whole table at each deletion."""

from alembic import op

revision = "0010"
down_revision = "0009"
oldest_code = "0007"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table in ("updates", "closures", "jobs"):
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {table}_decision_id_fkey")
