"""Prices: the weight of cost of each decision, and the cost-quality frontier of each policy."""

from ragbandit.migrations import add

revision = "0003"
down_revision = "0002"
oldest_code = "0001"


def upgrade() -> None:
    add(revision)
