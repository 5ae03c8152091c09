"""Limits on what callers ask for: how often with one key, and how much in a day for one tenant."""
