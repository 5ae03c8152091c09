"""Chats of arms of the class `model`: the request until it is answered, and the model's reply besides the text."""

from ragbandit.migrations import add

revision = "0008"
down_revision = "0007"
oldest_code = "0007"


def upgrade() -> None:
    add(revision)
