"""Logs of decisions whose truth is known."""
