"""The ledger: number of decisions and restarted arms of each row; diagnosis and arm versions of each policy."""

from ragbandit.migrations import add

revision = "0002"
down_revision = "0001"
oldest_code = "0001"


def upgrade() -> None:
    add(revision)
