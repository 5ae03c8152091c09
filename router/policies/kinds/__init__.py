"""Further policies: fixed probabilities, choices of other models, and a wrapper of other policies."""
