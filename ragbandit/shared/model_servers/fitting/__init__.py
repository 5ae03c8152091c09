"""Fits a request to the server that gets it: what a kind of server takes (`kinds`), and a file for each rule.

A rule changes only what the server would refuse, in copies, and leaves all other fields as they came. The names of
what was changed stand in the reply (`ragbandit.ignored`); names and ids of tools are changed back in the answer.
"""
