"""Evaluation: arms on the questions of a file, whose answers are kept. Each room does one thing with the outcomes."""
