"""Chats for arms of the class `model`: the original request while it waits, and parts of the reply other than text."""

from ragbandit.migrations import add

revision = "0008"
down_revision = "0007"
oldest_code = "0007"


def upgrade() -> None:
    add(revision)
