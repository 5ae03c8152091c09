"""Audit: draws, updates and versions checked again."""
