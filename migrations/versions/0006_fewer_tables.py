"""Drops more tables of removed features; their rows are written to JSON Lines first."""

from typing import Final

from alembic import op
from sqlalchemy import inspect

from ragbandit.migrations import drop
from ragbandit.router.storage.sql.tables import jobs, metadata

revision = "0006"
down_revision = "0005"
oldest_code = "0006"

#: tables of removed features; tables that refer to others come first
TABLES: Final[tuple[str, ...]] = ("calibration_due", "calibration_pairs", "decision_links", "erasures", "held_feedback")
#: table whose rows move to `jobs` -> (their kind, SQL of their facts)
_JOBS: Final = {
    "judge_due": ("judge", """'{"share": ' || share || ', "failures": ' || failures || '}'"""),
    "check_due": ("check", "'{}'"),
}


def upgrade() -> None:
    connection = op.get_bind()
    metadata.create_all(connection, tables=[jobs])
    for name, (kind, facts) in _JOBS.items():
        if inspect(connection).has_table(name):
            connection.exec_driver_sql(
                "INSERT INTO jobs (kind, decision_id, made_at, due_at, tries, facts) "  # noqa: S608 - names of ours
                f"SELECT '{kind}', decision_id, made_at, due_at, attempts, {facts} FROM {name}"
            )
            op.drop_table(name)
    connection.exec_driver_sql("DELETE FROM counters WHERE name = 'check_due'")
    connection.exec_driver_sql(
        "INSERT INTO counters (label, name, shard, value) SELECT '', 'check_due', 0, count(*) FROM jobs "
        "WHERE kind = 'check'"
    )
    drop(connection, TABLES)
    if "feedback_rater" not in {index["name"] for index in inspect(connection).get_indexes("feedback")}:
        op.create_index("feedback_rater", "feedback", ["rater", "received_at"])
