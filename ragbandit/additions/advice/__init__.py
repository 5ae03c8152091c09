"""The verb `advise` and `ragbandit.advise`: whether learned routing pays, on labelled questions, a table or a log."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    verbs={"Start here: advise": "command:advise_verb"},
    needs=frozenset({"evaluation"}),
    pages=("advise.md",),
)
