"""Tool turns: each outcome with tool calls names the decision that has their results."""

from ragbandit.migrations import add

revision = "0009"
down_revision = "0008"
oldest_code = "0007"


def upgrade() -> None:
    add(revision)
