"""Rollouts: people move a version of a policy from shadow through canary to champion; proof of harm rolls it back."""
