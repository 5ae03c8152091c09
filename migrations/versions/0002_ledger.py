"""The ledger: number of decisions when a row was appended, restarts of arms, and progress of its policy."""

from ragbandit.migrations import add

revision = "0002"
down_revision = "0001"
oldest_code = "0001"


def upgrade() -> None:
    add(revision)
