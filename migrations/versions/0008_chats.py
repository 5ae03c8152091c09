"""Chats that arms pass on as they came: the request until it is answered, and what a model replied beside the text."""

from ragbandit.migrations import add

revision = "0008"
down_revision = "0007"
oldest_code = "0007"


def upgrade() -> None:
    add(revision)
