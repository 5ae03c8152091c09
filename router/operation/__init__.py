"""Operation: what operators set and read beside decisions: dollar budgets, and findings with their remedies."""
