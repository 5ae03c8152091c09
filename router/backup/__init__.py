"""Backup: a store is copied whole while it is in use, and put into an empty place again."""
