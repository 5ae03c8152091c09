"""Advice: whether a router pays on given questions, by the command and by the library, and what it writes."""
