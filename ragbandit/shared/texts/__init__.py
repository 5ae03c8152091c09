"""Texts and values: formats, redaction, canonical forms."""
