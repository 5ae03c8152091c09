"""Rollouts: versions of a policy move on by evidence, from shadow over canary to champion, or back."""
