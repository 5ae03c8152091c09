"""Webhooks: what is sent of what happens, and who sends it."""
