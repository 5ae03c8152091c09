"""Decisions: writes, reads and searches of decisions with their outcomes and feedback."""
