"""Facts of decisions that queries ask for get columns. `ragbandit migrate` fills them after this step, in batches."""

from alembic import op

from ragbandit.router.storage.sql.tables import decisions

revision = "1006"
down_revision = "1005"
oldest_code = "1004"


def upgrade() -> None:
    for column in decisions.columns:
        if column.info.get("since") == revision:
            op.add_column("decisions", column)
