"""Arm parts: what several arms share."""
