"""Bought verdicts (`report --decide`): answers of both arms to stored questions, their prices, and the run."""
