"""Outbound calls: addresses, redaction and rate limits of every request to another machine."""
