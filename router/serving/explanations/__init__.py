"""Explanations: why a decision has its arm, and what the policy does with questions, for pages and texts."""
