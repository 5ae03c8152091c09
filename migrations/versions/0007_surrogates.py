"""Surrogates: scores of a judge or an event for decisions that a person rated."""

from ragbandit.migrations import add

revision = "0007"
down_revision = "0006"
oldest_code = "0006"


def upgrade() -> None:
    add(revision)
