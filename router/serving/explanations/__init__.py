"""Explanations: one decision with all that led to it and all that came of it, as a read model for pages and texts."""
