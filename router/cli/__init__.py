"""Command line: the verbs of `ragbandit`."""
