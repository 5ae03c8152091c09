"""Ledgers: registration, inheritance of older decisions, and updates in order."""
