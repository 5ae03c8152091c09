"""Fitted values of an arm's answers: the policy's predictions as control variates (docs/estimates.md, step 2)."""

from typing import Final

import numpy as np

from ragbandit.shared.types import Vector
from ragbandit.shared.types.ledger import effective_rows

#: with fewer rows of positive weight, no slope on the predictions is fitted
FEWEST_FOR_SLOPE: Final = 20
#: with this number of effective rows, half of the fitted slope is used; with more rows, a larger share
HALF_SLOPE: Final = 20.0


def fitted_values(value: Vector, *, weight: Vector, predicted: Vector) -> Vector:
    """Fitted value m of every row, shape (n,): the weighted mean, plus a slope on `predicted`."""
    used = weight > 0.0
    w, y, x = weight[used], value[used], predicted[used]
    mean = float(w @ y / w.sum())
    flat = np.full(len(value), mean)
    if used.sum() < FEWEST_FOR_SLOPE or np.isnan(x).all():
        return flat
    centre = float(np.nansum(w * x) / w[~np.isnan(x)].sum())
    distances = np.where(np.isnan(predicted), 0.0, predicted - centre)
    scatter = float(w @ distances[used] ** 2)
    if scatter <= 0.0:
        return flat
    rows = effective_rows(float(w.sum()), squares=float((w**2).sum()))
    slope = float(w @ (distances[used] * (y - mean))) / scatter * rows / (rows + HALF_SLOPE)
    line: Vector = mean + slope * distances
    return line
