"""Verbs that need no running service: simulate, train, replay, export and import."""
