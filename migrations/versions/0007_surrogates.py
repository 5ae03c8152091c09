"""Surrogates of a rating: what a judge or an event says of a decision that a person rated, too."""

from alembic import op
from sqlalchemy import Column

from ragbandit.router.storage.sql.tables import updates

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
oldest_code = "0006"


def upgrade() -> None:
    column = updates.c.surrogates
    op.add_column("updates", Column(column.name, column.type, comment=column.comment))


def downgrade() -> None:
    op.drop_column("updates", "surrogates")
