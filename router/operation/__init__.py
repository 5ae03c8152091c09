"""Operation: dollar budgets, and findings about an installation with their remedies."""
