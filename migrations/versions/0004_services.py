"""Services: the encoder of a ledger, arms of what waits."""

from ragbandit.migrations import add

revision = "0004"
down_revision = "0003"
oldest_code = "0001"


def upgrade() -> None:
    add(revision)
