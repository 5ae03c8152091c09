"""Fits a request to its server. `kinds` has the features that each kind of server accepts; each rule has a file.

A rule changes only what the server would refuse, and only in copies. The reply lists the names of the changed fields
(`ragbandit.ignored`). Names of tools and ids of calls are changed back in the answer.
"""
