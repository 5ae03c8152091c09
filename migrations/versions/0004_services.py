"""Services: deliveries of webhooks, decisions that wait for a check, the encoder that a ledger began with."""

from alembic import op
from sqlalchemy import Column

from ragbandit.router.storage.sql.tables import check_due, metadata, policies, webhook_deliveries

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
oldest_code = "0001"

_TABLES = (check_due, webhook_deliveries)


def upgrade() -> None:
    column = policies.c.encoder
    op.add_column(column.table.name, Column(column.name, column.type, comment=column.comment))
    metadata.create_all(op.get_bind(), tables=_TABLES)


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), tables=_TABLES)
    op.drop_column(policies.name, policies.c.encoder.name)
