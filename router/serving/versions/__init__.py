"""Versions: what is served of candidates, the kill switch, and the champion, as the database says."""
