"""Verbs that show what is there: status, verify, explain, top."""
