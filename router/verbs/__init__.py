"""Verbs: subcommands of `ragbandit` that need no arm, loaded when they are called."""
