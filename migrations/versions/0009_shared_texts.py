"""Texts that nearly every row repeats stand once; a decision's draw is kept in bytes.

Rows that are there stay as they are, and are read as ever. Both steps are quick at any size.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
oldest_code = "0009"


def upgrade() -> None:
    op.create_table(
        "shared_texts",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("sha256", name="shared_texts_once"),
    )
    comment = "body_hash, seed, pmf and scores (storage/rows/draw_bytes.py); then those columns are empty"
    op.add_column("decisions", sa.Column("draw", sa.LargeBinary(), nullable=True, comment=comment))
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        for table, column, said in _COMMENTS:
            op.alter_column(table, column, comment=said)


_COMMENTS = (
    ("decisions", "encoder_hash", "or # and the number of a shared text"),
    ("decisions", "arms", "JSON list, order of pmf and scores; or # and the number of a shared text"),
    ("outcomes", "made_by", "JSON object: params, generator, retriever, budget; or # and the number of a shared text"),
    ("outcomes", "cost", "JSON object; names: storage/rows/outcome_rows.py"),
)


def downgrade() -> None:
    newer = "SELECT 1 FROM shared_texts UNION ALL SELECT 1 FROM decisions WHERE draw IS NOT NULL LIMIT 1"
    if op.get_bind().execute(sa.text(newer)).first():
        raise RuntimeError("rows were written since that revision 0008 cannot read; put a backup of before back")
    with op.batch_alter_table("decisions") as table:
        table.drop_column("draw")
    op.drop_table("shared_texts")
