"""Importance weights: how many rows of equal weight a weighted comparison is worth, and how many it needs."""

from typing import Final

#: a comparison with fewer effective rows has no interval and no verdict on any surface: coverage was measured from
#: here on
FEWEST_EFFECTIVE: Final = 10


def effective_rows(total: float, *, squares: float) -> float:
    """(sum w)^2 / sum w^2 (Kish); 0 without any weight. total: sum of the weights; squares: sum of their squares."""
    return total**2 / squares if squares > 0.0 else 0.0
