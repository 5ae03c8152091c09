"""Policies that stand for themselves: fixed probabilities, another model's choice, wrappers of other policies."""
