"""Operation: what operators set and read: dollar budgets, and findings with their remedies."""
