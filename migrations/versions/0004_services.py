"""Services: the encoder of a ledger, arms of what waits."""

from ragbandit.migrations import add, take_back
from ragbandit.router.storage.sql.tables import answer_queue, policies

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
oldest_code = "0001"

_ADDED = (policies.c.encoder, answer_queue.c.arm)


def upgrade() -> None:
    add(*_ADDED)


def downgrade() -> None:
    take_back(*_ADDED)
