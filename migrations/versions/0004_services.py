"""Services: decisions that wait for a check, the encoder of a ledger, arms of what waits."""

from typing import Final

from alembic import op
from sqlalchemy import Column

from ragbandit.router.storage.sql.tables import answer_queue, check_due, metadata, policies

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
oldest_code = "0001"

_TABLES: Final = (check_due,)
_ADDED: Final = (policies.c.encoder, answer_queue.c.arm)


def upgrade() -> None:
    for column in _ADDED:
        op.add_column(column.table.name, Column(column.name, column.type, comment=column.comment))
    metadata.create_all(op.get_bind(), tables=_TABLES)


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), tables=_TABLES)
    for column in _ADDED:
        op.drop_column(column.table.name, column.name)
