"""Evaluation: strategies on labelled questions, their rows and the table of their outcomes."""
