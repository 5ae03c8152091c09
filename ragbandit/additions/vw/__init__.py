"""Vowpal Wabbit as a policy."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(policies={"vw": "policy:VowpalWabbit"})
