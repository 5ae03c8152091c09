"""Decisions: what is written and read of one, with its outcome and its feedback, and how it is looked for."""
