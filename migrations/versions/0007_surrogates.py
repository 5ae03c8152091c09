"""Surrogates of a rating: what a judge or an event says of a decision that a person rated, too."""

from ragbandit.migrations import add, take_back
from ragbandit.router.storage.sql.tables import updates

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
oldest_code = "0006"


def upgrade() -> None:
    add(updates.c.surrogates)


def downgrade() -> None:
    take_back(updates.c.surrogates)
