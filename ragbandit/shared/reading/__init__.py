"""Reads texts from outside: their caps, their fields, and the thread that reads large ones."""
