"""Importance weights: how many rows of equal weight a weighted comparison is worth."""


def effective_rows(total: float, *, squares: float) -> float:
    """(sum w)^2 / sum w^2 (Kish); 0 without any weight. total: sum of the weights; squares: sum of their squares."""
    return total**2 / squares if squares > 0.0 else 0.0


def surely_effective_rows(total: float, *, squares: float, rows: float, expected_squares: float) -> float:
    """Effective rows of those drawn or as expected, whichever are fewer.

    rows: rows of the log; expected_squares: sum over them of the expectation of w^2 by the probabilities alone. Where a
    heavy weight is possible and none was drawn yet, the drawn ones alone look like many rows.
    """
    return min(effective_rows(total, squares=squares), effective_rows(rows, squares=expected_squares))
