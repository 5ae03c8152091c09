"""Feedback of several raters: who judged, and how much a reward counts.

Rows that are there keep NULL in the new columns, which says what they said before; the tables are new and empty. The
step is quick at any size.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
oldest_code = "0010"


_LABEL, _ID = sa.String(length=40), sa.String(length=64)
_LONG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _columns() -> dict[str, list[sa.Column[Any]]]:
    return {
        "feedback": [
            sa.Column("rater", sa.String(length=64), nullable=True, comment="which one of the source"),
            sa.Column("event", sa.String(length=64), nullable=True, comment="name of the event"),
            sa.Column("facts", sa.Text(), nullable=True, comment="JSON object, what else the rater said"),
        ],
        "updates": [
            sa.Column("judged_by", sa.String(length=16), nullable=True, comment="label, human, judge or event"),
            sa.Column(
                "raw_quality", sa.Double(), nullable=True, comment="before calibration; NULL: it was not calibrated"
            ),
            sa.Column("sample_weight", sa.Double(), nullable=True, comment="rows that it counts as; NULL: one"),
            sa.Column(
                "disagreement",
                sa.Double(),
                nullable=True,
                comment="how far its raters lie apart in quality; NULL: there were not two",
            ),
        ],
    }


def upgrade() -> None:
    op.create_table(
        "calibration_pairs",
        sa.Column("policy", _LABEL, nullable=False),
        sa.Column("number", _LONG, nullable=False, autoincrement=False, comment="1, 2, 3 ... in the order found"),
        sa.Column("decision_id", _ID, nullable=False),
        sa.Column("arm", sa.String(length=64), nullable=False),
        sa.Column("score", sa.Double(), nullable=False, comment="the model's"),
        sa.Column("quality", sa.Double(), nullable=False, comment="what people made of it"),
        sa.Column("after_seq", _LONG, nullable=False, comment="updates with a larger seq are calibrated with it"),
        sa.PrimaryKeyConstraint("policy", "number"),
        sa.UniqueConstraint("policy", "decision_id", name="calibration_pairs_decision_once"),
    )
    op.create_table(
        "calibration_due",
        sa.Column("policy", _LABEL, nullable=False),
        sa.Column("decision_id", _ID, nullable=False, comment="late feedback has made it a pair, maybe"),
        sa.PrimaryKeyConstraint("policy", "decision_id"),
    )
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        op.alter_column("feedback", "value", comment="JSON number, list of gold answers, or null")


def downgrade() -> None:
    for table, columns in _columns().items():
        said = sa.or_(*(sa.column(column.name).is_not(None) for column in columns))
        if op.get_bind().execute(sa.select(sa.literal(1)).select_from(sa.table(table)).where(said).limit(1)).first():
            raise RuntimeError("rows were written since that revision 0009 cannot read; put a backup of before back")
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column.name)
    op.drop_table("calibration_due")
    op.drop_table("calibration_pairs")
