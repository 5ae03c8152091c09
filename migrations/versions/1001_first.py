"""The schema of 1.0: the tables of `ragbandit.router.storage.sql.tables`, without later additions.

Tables, columns and indexes of later migrations are marked with their revision, as `info={"since": "1002"}`. A migration
that changes or removes something must first copy its former definition to this file.
"""

from typing import Final

from alembic import op
from sqlalchemy import Column, String, text

from ragbandit.router.storage.sql.tables import schema_at

revision = "1001"
down_revision = None
oldest_code = "1001"

#: dialect -> statements that let the database refuse to change or delete rows of the audit log
_APPEND_ONLY: Final = {
    "sqlite": [
        f"CREATE TRIGGER audit_log_no_{change.lower()} BEFORE {change} ON audit_log"
        " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        for change in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        """CREATE FUNCTION audit_log_refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$""",
        """CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
        FOR EACH STATEMENT EXECUTE FUNCTION audit_log_refuse()""",
    ],
}
#: (name, table, columns, condition) of the indexes that 1005 replaced
_REPLACED: Final = (
    ("waiting_ready", "waiting", ["policy", "has_feedback", "has_outcome", "has_reward", "decided_at"], None),
    ("jobs_made_at", "jobs", ["kind", "made_at"], None),
    ("jobs_tenant", "jobs", ["kind", "tenant", "turn"], text("tenant IS NOT NULL")),
)


def upgrade() -> None:
    schema_at(revision).create_all(op.get_bind())
    for name, table, columns, condition in _REPLACED:
        op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)
    # A column in Alembic's table: the largest `oldest_code` of the migrations that ran. Older code must not run.
    op.add_column("alembic_version", Column("code_from", String(32)))
