"""The policies `adaptive_rag` and `multi_label`: DistilBERT or T5, trained on a table of every arm's outcomes."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(policies={"adaptive_rag": "policies:AdaptiveRag", "multi_label": "policies:MultiLabel"})
