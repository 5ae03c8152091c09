"""A smaller product, second part: more tables of features that left; their rows are written to JSON Lines first."""

from typing import Final

from alembic import op

from ragbandit.migrations.dropping import drop

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
oldest_code = "0006"

#: tables without a feature, those that refer to others first
TABLES: Final[tuple[str, ...]] = ("decision_links",)
#: (table, column) without a feature; their values are not written anywhere
COLUMNS: Final[tuple[tuple[str, str], ...]] = ()


def upgrade() -> None:
    drop(op.get_bind(), tables=TABLES, columns=COLUMNS)


def downgrade() -> None:
    """Nothing: what was dropped is in the exported files."""
