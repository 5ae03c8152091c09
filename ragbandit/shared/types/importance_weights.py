"""Importance weights: how many rows of equal weight a weighted comparison is worth."""


def effective_rows(total: float, *, squares: float) -> float:
    """(sum w)^2 / sum w^2 (Kish); 0 without any weight. total: sum of the weights; squares: sum of their squares."""
    return total**2 / squares if squares > 0.0 else 0.0
