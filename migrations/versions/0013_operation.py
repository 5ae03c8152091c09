"""Versions of policies with their verdicts and switch, and hourly totals of the arms, which pages and metrics read.

The tables are new and empty; no other table is touched, so that the release before goes on with this schema.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
oldest_code = "0011"

_LABEL, _STATE = sa.String(length=40), sa.String(length=16)
_LONG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "policy_versions",
        sa.Column("name", _LABEL, nullable=False),
        sa.Column("base", _LABEL, nullable=False, comment="policy.label of the configuration that it is a version of"),
        sa.Column("label", _LABEL, nullable=False, comment="its own ledger"),
        sa.Column("state", _STATE, nullable=False),
        sa.Column("weight", sa.Double(), nullable=False, comment="share of its pmf in what is served"),
        sa.Column("former", _STATE, nullable=True, comment="the state that a paused one comes back to"),
        sa.Column(
            "changes", sa.Text(), nullable=False, comment="JSON object: settings that differ from the configuration"
        ),
        sa.Column("revision", _LONG, nullable=False, comment="changes of this row"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("waits_for", sa.Text(), nullable=False),
        sa.Column("made_by", sa.String(length=128), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False, comment="when its state or weight changed last"),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("policy_versions_base", "policy_versions", ["base", "state"])
    op.create_table(
        "policy_verdicts",
        sa.Column("number", _LONG, nullable=False, autoincrement=False, comment="1, 2, 3 ..."),
        sa.Column("version", _LABEL, nullable=False),
        sa.Column("state", _STATE, nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("kind", _STATE, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("inputs_sha256", sa.String(length=64), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("policy_verdicts_version", "policy_verdicts", ["version", "number"])
    op.create_table(
        "policy_control",
        sa.Column("base", _LABEL, nullable=False, comment="policy.label of the configuration"),
        sa.Column("revision", _LONG, nullable=False, comment="rises with every change of a version or of the switch"),
        sa.Column("killed", _STATE, nullable=True, comment="arm or champion; NULL: versions decide"),
        sa.Column("arm", sa.String(length=64), nullable=True),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("base"),
    )
    _add_totals()


def _add_totals() -> None:
    op.create_table(
        "arm_hours",
        sa.Column("policy", _LABEL, nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False, autoincrement=False, comment="hours since the epoch, UTC"),
        sa.Column("arm", sa.String(length=64), nullable=False),
        sa.Column("totals", sa.Text(), nullable=False, comment="JSON object: counts and sums of types/totals.py"),
        sa.PrimaryKeyConstraint("policy", "hour", "arm"),
    )
    op.create_table(
        "reading_positions",
        sa.Column("reader", sa.String(length=64), nullable=False, comment="arm_hours:LABEL, ..."),
        sa.Column("position", sa.Text(), nullable=False, comment="JSON object: up to where it has read"),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("reader"),
    )


def downgrade() -> None:
    for name in ("reading_positions", "arm_hours", "policy_control", "policy_verdicts", "policy_versions"):
        op.drop_table(name)
