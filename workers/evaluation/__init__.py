"""Evaluation: `ragbandit evaluate` runs arms on labelled questions and judges their answers."""
