"""Facts of decisions that queries ask for get columns. `ragbandit migrate` fills them after this step, in batches."""

from alembic import op
from sqlalchemy import Boolean, Column

from ragbandit.router.storage.sql.tables import FORMER_FLAGS, decisions

revision = "1006"
down_revision = "1005"
oldest_code = "1004"


def upgrade() -> None:
    for column in decisions.columns:
        if column.info.get("since") == revision:
            op.add_column("decisions", column)
    for name in FORMER_FLAGS:
        op.add_column("decisions", Column(name, Boolean))
