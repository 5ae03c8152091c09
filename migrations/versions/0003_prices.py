"""Prices: the weight of cost that each decision was served at; the frontier of a policy, which aims are solved by."""

from typing import Final

from alembic import op
from sqlalchemy import Column

from ragbandit.router.storage.sql.tables import decisions, policies

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
oldest_code = "0001"

_ADDED: Final = (decisions.c.cost_weight, decisions.c.price, policies.c.frontier)


def upgrade() -> None:
    for column in _ADDED:
        op.add_column(column.table.name, Column(column.name, column.type, comment=column.comment))


def downgrade() -> None:
    for column in _ADDED:
        op.drop_column(column.table.name, column.name)
