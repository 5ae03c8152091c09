"""Verb `skeleton`: writes a package with parts of one's own, and the tests of their contracts."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(verbs={"Start here: skeleton": "command:skeleton"})
