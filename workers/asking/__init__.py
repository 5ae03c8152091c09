"""Runs that ask: arms answer the same questions, a scorer scores the answers, and a stop says when the run ends."""
