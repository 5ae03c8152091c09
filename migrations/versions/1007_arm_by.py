"""Decisions name who chose their arm, if the policy did not draw it. `ragbandit migrate` fills the column in batches.

Rows of former releases, and rows that their processes insert after this step, get the column's default.
"""

from alembic import op

from ragbandit.router.storage.sql.tables import decisions

revision = "1007"
down_revision = "1006"
oldest_code = "1004"


def upgrade() -> None:
    op.add_column("decisions", decisions.c.arm_by)
