"""Ledgers: registration, inheritance, updates in order."""
