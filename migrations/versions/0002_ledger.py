"""The ledger: decisions made when a row was appended, where an arm began anew, how far its policy has learned."""

from typing import Final

from ragbandit.migrations import add, take_back
from ragbandit.router.storage.sql.tables import policies, updates

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
oldest_code = "0001"

_ADDED: Final = (updates.c.decided, updates.c.restarts, policies.c.arms, policies.c.diagnosis)


def upgrade() -> None:
    add(*_ADDED)


def downgrade() -> None:
    take_back(*_ADDED)
