"""Trains the policies that learn from tables, ahead of traffic."""

__all__: list[str] = []
