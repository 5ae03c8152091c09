"""Runs: arms answer the same questions, a scorer scores the answers, and a `Stop` ends the run."""
