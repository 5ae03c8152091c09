"""The verb `evaluate`: strategies on labelled questions, and rows of routers on a table with every arm's outcome."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(verbs={"Judge and change: evaluate": "command:evaluate"}, pages=("evaluate.md", "papers.md"))
