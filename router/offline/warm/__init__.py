"""Warm start: labelled questions or a log are learned before the first user comes, and judged on what is held out.

material: the rows of a table or of a log, with features. held_out: what the policy would do on questions that it has
not learned. entering: the rows into the ledger of the configuration, and the policy that has learned them.
"""
