"""Audit: draws, updates, versions and the archive checked again."""
