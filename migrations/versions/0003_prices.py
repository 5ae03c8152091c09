"""Prices: the weight of cost that each decision was served at; the frontier of a policy, which aims are solved by."""

from ragbandit.migrations import add

revision = "0003"
down_revision = "0002"
oldest_code = "0001"


def upgrade() -> None:
    add(revision)
