"""Rollouts: people move a version of a policy from shadow to champion and back, by the evidence of the log."""
