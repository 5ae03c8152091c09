"""Offline: estimate, replay and advise on policies without serving them."""
