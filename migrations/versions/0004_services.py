"""Services: the encoder of each ledger, and the arm of each decision in the answer queue."""

from ragbandit.migrations import add

revision = "0004"
down_revision = "0003"
oldest_code = "0001"


def upgrade() -> None:
    add(revision)
