"""Checks: a function of the operator's scores answers, in a process of its own."""
