"""The ledger: decisions made when a row was appended, where an arm began anew, how far its policy has learned."""

from typing import Final

from alembic import op
from sqlalchemy import Column

from ragbandit.router.storage.sql.tables import policies, updates

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
oldest_code = "0001"

_ADDED: Final = (updates.c.decided, updates.c.restarts, policies.c.arms, policies.c.diagnosis)


def upgrade() -> None:
    for column in _ADDED:
        op.add_column(column.table.name, Column(column.name, column.type, comment=column.comment))


def downgrade() -> None:
    for column in _ADDED:
        op.drop_column(column.table.name, column.name)
