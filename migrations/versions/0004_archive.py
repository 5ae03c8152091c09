"""Segments of the archive."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
oldest_code = "0004"


def upgrade() -> None:
    op.create_table(
        "archive_segments",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("root", sa.Text(), nullable=False, comment="folder or fsspec URL"),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column(
            "seal",
            sa.String(length=64),
            nullable=False,
            comment="sha256 of the seal before it and of what is never erased",
        ),
        sa.Column("decisions", sa.BigInteger(), nullable=False),
        sa.Column("spans", sa.Text(), nullable=False, comment="JSON object: label -> first and last seq"),
        sa.Column("kept", sa.Text(), nullable=False, comment="JSON list of decisions that stayed in the database"),
        sa.Column("made_before", sa.Double(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("moved", sa.Boolean(), nullable=False, comment="its rows have left the database"),
        sa.PrimaryKeyConstraint("number"),
    )


def downgrade() -> None:
    op.drop_table("archive_segments")
