"""The ledger: decisions made when a row was appended, where an arm began anew, how far its policy has learned."""

from ragbandit.migrations import add

revision = "0002"
down_revision = "0001"
oldest_code = "0001"


def upgrade() -> None:
    add(revision)
