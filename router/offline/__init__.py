"""Offline: estimate, replay and simulate policies without serving them."""
