"""Answers of two arms to the same questions, for `report --decide`."""

from alembic import op

from ragbandit.router.storage.sql.tables import paired_answers

revision = "1003"
down_revision = "1002"
oldest_code = "1002"


def upgrade() -> None:
    paired_answers.create(op.get_bind())
