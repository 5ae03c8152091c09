"""Paired answers to stored questions, for `report --decide`: the questions, their prices, and the run."""
