"""Rollouts: evidence moves a version of a policy from shadow through canary to champion, or back."""
