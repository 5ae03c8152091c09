"""Prices: the weight of cost that each decision was served at; the frontier of a policy, which aims are solved by."""

from typing import Final

from ragbandit.migrations import add, take_back
from ragbandit.router.storage.sql.tables import decisions, policies

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
oldest_code = "0001"

_ADDED: Final = (decisions.c.cost_weight, decisions.c.price, policies.c.frontier)


def upgrade() -> None:
    add(*_ADDED)


def downgrade() -> None:
    take_back(*_ADDED)
