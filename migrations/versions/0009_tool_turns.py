"""Tool turns: a column with the decision that got the results of an outcome's tool calls."""

from ragbandit.migrations import add

revision = "0009"
down_revision = "0008"
oldest_code = "0007"


def upgrade() -> None:
    add(revision)
