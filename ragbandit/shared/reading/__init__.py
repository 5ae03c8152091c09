"""Reads texts from outside: how much of them, and where."""
