"""API keys, the audit log, conversations, sources of answers, and what is held or quarantined of feedback.

Rows that are there keep NULL in the new columns, which says what they said before; the tables are new and empty. The
step is quick at any size, but for one look at every decision to make an empty index.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
oldest_code = "0011"


_LABEL, _ID, _KEY = sa.String(length=40), sa.String(length=64), sa.String(length=16)
_LONG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _columns() -> dict[str, list[sa.Column[Any]]]:
    more = "messages, asked, forced, and what else the edge knows"
    return {
        "decisions": [
            sa.Column("session", sa.String(length=128), nullable=True, comment="the conversation"),
            sa.Column("api_key", _KEY, nullable=True, comment="public id of the key it came with"),
            sa.Column("request", sa.Text(), nullable=True, comment=f"JSON object: {more}; NULL: nothing"),
        ],
        "outcomes": [
            sa.Column(
                "sources",
                sa.LargeBinary(),
                nullable=True,
                comment="packed JSON list: the passages that were shown; NULL: none",
            ),
        ],
        "feedback": [sa.Column("api_key", _KEY, nullable=True, comment="public id of the key it came with")],
    }


def upgrade() -> None:
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)
    there = sa.text("session IS NOT NULL")
    op.create_index(
        "decisions_session", "decisions", ["session", "tenant", "made_at"], sqlite_where=there, postgresql_where=there
    )
    _add_keys()
    _add_feedback_tables()
    _add_secrets()
    _add_import_tables()


def _add_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("public_id", _KEY, nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False, comment="hex digits, of the secret part"),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", _KEY, nullable=False, comment="reader, app, rater, worker, operator, admin"),
        sa.Column("scopes", sa.Text(), nullable=False, comment="JSON object: what the key is narrowed to"),
        sa.Column("tenant", sa.String(length=64), nullable=True, comment="NULL: of every tenant"),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("made_by", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True, comment="at most a minute old"),
        sa.Column("replaced_by", _KEY, nullable=True, comment="public id of the key that it was rotated to"),
        sa.PrimaryKeyConstraint("public_id"),
    )
    op.create_table(
        "audit_log",
        sa.Column("number", _LONG, nullable=False, autoincrement=False, comment="1, 2, 3 ..."),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False, comment="key:PUBLIC_ID, or cli:USER@HOST"),
        sa.Column("action", sa.String(length=64), nullable=False, comment="key.create, feedback.quarantine, ..."),
        sa.Column("target", sa.String(length=128), nullable=False, comment="what it was done to"),
        sa.Column("tenant", sa.String(length=64), nullable=True),
        sa.Column("facts", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("sha256", sa.String(length=64), nullable=False, comment="of the row before and of this one"),
        sa.PrimaryKeyConstraint("number"),
    )
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


_SQLITE = (
    "CREATE TRIGGER {name} BEFORE {what} ON audit_log BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
)
_REFUSE = """CREATE FUNCTION audit_log_refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$"""
_POSTGRESQL = """CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
FOR EACH STATEMENT EXECUTE FUNCTION audit_log_refuse()"""
#: dialect -> what makes the database refuse to change or delete a row of the audit log
_APPEND_ONLY = {
    "sqlite": [_SQLITE.format(name=f"audit_log_no_{what.lower()}", what=what) for what in ("UPDATE", "DELETE")],
    "postgresql": [_REFUSE, _POSTGRESQL],
}


def _add_feedback_tables() -> None:
    op.create_table(
        "held_feedback",
        sa.Column("policy", _LABEL, nullable=False),
        sa.Column("feedback_id", _ID, nullable=False),
        sa.Column("decision_id", _ID, nullable=False),
        sa.Column("source", sa.String(length=160), nullable=False, comment="key:PUBLIC_ID, tenant:NAME or rater:NAME"),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("held_at", sa.Double(), nullable=False),
        sa.Column("released_at", sa.Double(), nullable=True, comment="NULL: it is held"),
        sa.Column("released_by", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint("policy", "feedback_id"),
    )
    op.create_index("held_feedback_source", "held_feedback", ["policy", "source", "held_at"])
    op.create_index("held_feedback_decision", "held_feedback", ["decision_id"])
    op.create_table(
        "quarantines",
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("selection", sa.Text(), nullable=False, comment="JSON object: source, since, until"),
        sa.Column("policy", _LABEL, nullable=False, comment="the ledger that had learned from it"),
        sa.Column("new_policy", _LABEL, nullable=False, comment="the ledger that is learned without it"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("lifted_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
    )


def _add_secrets() -> None:
    op.create_table(
        "service_secrets",
        sa.Column(
            "name", sa.String(length=32), nullable=False, comment="feedback: what feedback tokens are signed with"
        ),
        sa.Column("value", sa.String(length=64), nullable=False, comment="hex digits"),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _add_import_tables() -> None:
    op.create_table(
        "decision_links",
        sa.Column("kind", sa.String(length=32), nullable=False, comment="openwebui_message, trace, span, run, ..."),
        sa.Column("value", sa.String(length=128), nullable=False, comment="the id there"),
        sa.Column("decision_id", _ID, nullable=False, comment="it may be in the archive"),
        sa.PrimaryKeyConstraint("kind", "value", "decision_id"),
    )
    op.create_index("decision_links_decision", "decision_links", ["decision_id"])
    op.create_table(
        "import_cursors",
        sa.Column("source", sa.String(length=128), nullable=False, comment="langfuse:HOST, openwebui:HOST, ..."),
        sa.Column("position", sa.Text(), nullable=False, comment="JSON object: where the next import begins"),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("source"),
    )


def downgrade() -> None:
    tables = (
        "service_secrets",
        "import_cursors",
        "decision_links",
        "quarantines",
        "held_feedback",
        "audit_log",
        "api_keys",
    )
    for name in tables:
        op.drop_table(name)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_log_refuse()")
    op.drop_index("decisions_session", table_name="decisions")
    for table, columns in _columns().items():
        said = sa.or_(*(sa.column(column.name).is_not(None) for column in columns))
        if op.get_bind().execute(sa.select(sa.literal(1)).select_from(sa.table(table)).where(said).limit(1)).first():
            raise RuntimeError("rows were written since that revision 0011 cannot read; put a backup of before back")
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column.name)
