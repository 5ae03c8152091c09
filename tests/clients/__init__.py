"""Unmodified clients of others against a live service; `make clients` runs them, each kind in its own environment."""
