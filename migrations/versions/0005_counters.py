"""Counters that are kept instead of counted, 64-bit sequence numbers, an index of snapshots by params.

Every table is counted once, about a second per million decisions. On PostgreSQL, `updates` is written anew for the
64-bit column and locked meanwhile: about ten seconds per million updates, and as much room again until it is done.
Stop every process first: one of a release before this one would write rows without moving the counters, and
`ragbandit verify` would say so (`ragbandit recount` puts them right).
"""

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
oldest_code = "0005"

_STORE = [
    "SELECT '', 'decided', 0, COUNT(*) FROM decisions",
    "SELECT '', 'feedback', 0, COUNT(*) FROM feedback",
    "SELECT '', 'late_feedback', 0, COUNT(*) FROM feedback WHERE late",
]
_LABELS = [
    """SELECT policy, CASE WHEN source = 'explicit' THEN 'learned' ELSE 'defaulted' END AS name, 0, COUNT(*)
       FROM updates GROUP BY 1, 2""",
    """SELECT policy, CASE WHEN state = 'quarantined' THEN 'quarantined' ELSE 'closed' END AS name, 0, COUNT(*)
       FROM closures GROUP BY 1, 2""",
    "SELECT policy, 'waiting', 0, COUNT(*) FROM waiting GROUP BY 1",
    """SELECT policy, 'unanswered', 0, COUNT(*) FROM waiting
       WHERE run_by = 'worker' AND NOT has_outcome GROUP BY 1""",
    """SELECT policy, 'missing_outcome', 0, COUNT(*) FROM waiting
       WHERE run_by = 'caller' AND has_feedback AND NOT has_outcome AND NOT has_reward GROUP BY 1""",
]


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("label", sa.String(length=40), nullable=False, comment="empty: of the whole store"),
        sa.Column("name", sa.String(length=24), nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False, comment="summed when read"),
        sa.Column("value", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("label", "name", "shard"),
    )
    for counting in _STORE + _LABELS:
        op.execute(f"INSERT INTO counters (label, name, shard, value) {counting}")
    if op.get_bind().dialect.name == "postgresql":  # every integer of SQLite has 64 bits
        op.alter_column("updates", "seq", type_=sa.BigInteger())
        op.alter_column("snapshots", "last_seq", type_=sa.BigInteger())
    _add_params_sha256()
    op.drop_index("waiting_ready", table_name="waiting")
    op.create_index("waiting_ready", "waiting", ["policy", "has_feedback", "has_outcome", "has_reward", "decided_at"])


def _add_params_sha256() -> None:
    comment = "of params, which may be too long for an index"
    with op.batch_alter_table("snapshots") as table:
        table.add_column(sa.Column("params_sha256", sa.String(length=64), nullable=True, comment=comment))
    snapshots = sa.table("snapshots", sa.column("params", sa.Text()), sa.column("params_sha256", sa.String()))
    for params in op.get_bind().execute(sa.select(snapshots.c.params).distinct()).scalars().all():
        sha256 = hashlib.sha256(params.encode()).hexdigest()
        op.execute(snapshots.update().where(snapshots.c.params == params).values(params_sha256=sha256))
    with op.batch_alter_table("snapshots") as table:
        table.alter_column(
            "params_sha256", nullable=False, existing_type=sa.String(length=64), existing_comment=comment
        )
    op.create_index("snapshots_of_params", "snapshots", ["policy", "algorithm", "params_sha256", "last_seq"])


def downgrade() -> None:
    op.drop_index("waiting_ready", table_name="waiting")
    op.create_index("waiting_ready", "waiting", ["policy", "has_feedback", "has_outcome", "decided_at"])
    op.drop_index("snapshots_of_params", table_name="snapshots")
    with op.batch_alter_table("snapshots") as table:
        table.drop_column("params_sha256")
    op.drop_table("counters")
