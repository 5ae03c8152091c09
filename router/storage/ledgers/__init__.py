"""Ledgers: registration, inheritance, updates in order, their sha256 chain, checkpoints."""
