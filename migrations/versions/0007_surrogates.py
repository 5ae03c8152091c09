"""Surrogates: a column with the scores of judges and events for decisions that a person rated too."""

from ragbandit.migrations import add

revision = "0007"
down_revision = "0006"
oldest_code = "0006"


def upgrade() -> None:
    add(revision)
