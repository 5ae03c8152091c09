"""Compares the served answers with always using one arm. The intervals hold however often the report is read."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.comparison import Difference
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, asymptotic_width
from ragbandit.shared.types import Matrix, Vector
from ragbandit.shared.types.ledger import effective_rows

Choices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

#: probability that the interval misses the true difference in at least one of the reports made while the log grows
ALPHA: Final = 0.05
#: number of effective rows at which the interval is tightest
_NARROWEST_AT: Final = 200
#: the interval allows for this number of unseen rows with the heaviest weight and the most extreme value; see
#: `python -m benchmarks.coverage --places report`
_UNSEEN_ROWS: Final = 1.5
#: a difference below this share of the larger mean is rounding, and is set to 0
_ROUNDING: Final = 1e-9
#: an arm's mean is computed as if the arm had this number of additional rows, each with the mean of all arms
_PRIOR_ROWS: Final = 2.0
#: with fewer rows of positive weight, no slope on the predictions is fitted
_FEWEST_FOR_SLOPE: Final = 20
#: with this number of effective rows, half of the fitted slope is used; with more rows, a larger share
_HALF_SLOPE: Final = 20.0
#: share of Wilson's correction for skewness that is applied, so that the interval holds however often it is computed
_LEAN: Final = 0.95
_TINY: Final = 1e-300


def compared(
    value: Vector,
    *,
    arm: Choices,
    pmf: Matrix,
    predicted: Matrix,
    against: int,
    least: float,
    most: float,
    counts: Vector | None = None,
) -> tuple[Difference, Matrix | None]:
    """The served answers minus always using one arm, in the unit of `value`. A row is a question.

    Returns (difference, doubly robust scores of both ways, whose means it compares: shape (2, n)). Below
    FEWEST_EFFECTIVE effective rows there are no estimate, interval and scores, only the mean of what was served.

    value: values of the answers, the newest first, shape (n,); NaN if the value of an answer is not known
    arm: index of the drawn arm, shape (n,)
    pmf: probabilities of the K arms at the draw, shape (n, K); above 0 for `against` in every row
    predicted: the policy's predictions for all arms before the draw, shape (n, K); NaN without a prediction
    against: index of the arm to compare with
    least, most: smallest and largest possible value
    counts: 1 / (probability that the row's value is known), shape (n,); None if the probability is equal for all rows
    """
    n = len(value)
    is_seen, is_drawn = ~np.isnan(value), arm == against
    if not is_seen.any():
        return Difference(), None
    seen_weight = np.where(is_seen, 1.0 if counts is None else counts, 0.0)
    served, seen_share, unknown = _served(
        value, seen_weight=seen_weight, arm=arm, predicted=predicted[np.arange(n), arm]
    )
    first = float(served.mean())
    if not (is_drawn & is_seen).any():
        return Difference(first=first), None
    inverse, rated = 1.0 / pmf[:, against], float(seen_share[against])
    weight = np.where(is_drawn & is_seen, inverse * seen_weight, 0.0)
    effective = min(
        _effective(weight),
        # computed from the probabilities of all questions, so that questions that hardly ever draw the arm count too
        rated * effective_rows(float(n), squares=float((inverse if counts is None else inverse * counts).sum())),
        _effective(seen_weight / seen_share[arm]),
    )
    if not effective >= FEWEST_EFFECTIVE:  # also for NaN
        return Difference(first=first, effective_rows=effective), None
    model = _fitted(value, weight=weight, predicted=predicted[:, against])
    always = model + np.where(weight > 0.0, value - model, 0.0) * weight * (n / weight.sum())
    least_share = 0.0 if is_seen.all() else float(seen_share[arm[is_seen]].min())
    heavy = _heavy(inverse, is_drawn=is_drawn, counts=counts, rated=rated, least_share=least_share)
    span = most - least
    scores = np.stack([served, always])
    return _interval(scores, effective=effective, farthest=heavy * span / n, margin=unknown * span), scores


def _effective(weight: Vector) -> float:
    return effective_rows(float(weight.sum()), squares=float((weight**2).sum()))


def _heavy(inverse: Vector, *, is_drawn: Flags, counts: Vector | None, rated: float, least_share: float) -> float:
    """The weight of the heaviest rows: the mean of cubed weights divided by the mean of squared weights.

    It is computed from the probabilities (see `heavy_weight` in comparison/intervals). rated: share of seen rows of the
    compared arm. least_share: smallest such share of a drawn arm, 0 if every row was seen. counts: see `compared`
    """
    if counts is None:
        heavy = float((inverse**2).sum() / inverse.sum()) / rated
        return max(heavy, 1.0 / least_share if least_share else 0.0)
    # The weight of a row is the amount that its label would add to the difference.
    added = counts * np.abs(1.0 - np.where(is_drawn, inverse, 0.0))
    return float((added**3 / counts).sum() / (added**2 / counts).sum()) / rated


def _interval(scores: Matrix, *, effective: float, farthest: float, margin: float) -> Difference:
    """The mean difference of two rows of scores with its interval. margin: added to both sides."""
    first, second = map(float, scores.mean(axis=1))
    difference = scores[0] - scores[1]
    middle = float(difference.mean())
    if abs(middle) < _ROUNDING * max(abs(first), abs(second)):
        middle = 0.0
    variance = float(difference.var(ddof=1)) / len(difference) * effective / (effective - 2.0)
    below, above = _standard_errors(difference - middle, variance=variance, farthest=farthest)
    width = float(asymptotic_width(np.array([effective]), alpha=ALPHA, tightest_at=_NARROWEST_AT, sides=2)[0])
    times = width * math.sqrt(effective)
    low, high = middle - times * below - margin, middle + times * above + margin
    return Difference(estimate=middle, low=low, high=high, effective_rows=effective, first=first, second=second)


def _standard_errors(deviations: Vector, *, variance: float, farthest: float) -> tuple[float, float]:
    """Returns the standard errors of a mean, as (error below the mean, error above the mean).

    Only few of the rare rows were seen. So the interval leans to the side on which they lie, as Wilson's interval of a
    share does (1927). On the other side, the interval allows for _UNSEEN_ROWS only as far as the log shows that rare
    rows may lie there.

    deviations: the rows minus their mean, shape (n,)
    variance: variance of the mean
    farthest: amount that the most extreme row adds to the mean
    """
    if farthest <= 0.0:  # the arm costs nothing, so unseen answers add nothing
        return math.sqrt(variance), math.sqrt(variance)
    rows = deviations / (len(deviations) * farthest)
    lean = float(rows @ rows**2) / max(float(rows @ rows), _TINY)  # in units of `farthest`
    rarity = min(math.hypot(lean, 1.0 / math.sqrt(1.0 + 2.0 * float(rows**2 @ rows**2))), 1.0)
    near, wide = (math.sqrt(variance + (_UNSEEN_ROWS * farthest * share) ** 2) for share in (rarity, 1.0))
    shift = _LEAN * _UNSEEN_ROWS * farthest * max(min(lean, 1.0), -1.0)
    below, above = (near, wide) if lean > 0.0 else (wide, near)
    return max(below - shift, 0.0), max(above + shift, 0.0)


def _served(value: Vector, *, seen_weight: Vector, arm: Choices, predicted: Vector) -> tuple[Vector, Vector, float]:
    """Returns (estimated value of each served answer, share of seen rows of each arm, share without any seen row).

    The second is 1 for an arm without a seen row. The third is the share of all rows that drew such an arm.
    """
    is_seen = seen_weight > 0.0
    model, overall = np.empty(len(value)), float(np.average(value[is_seen], weights=seen_weight[is_seen]))
    seen_share, unknown = np.ones(int(arm.max()) + 1), 0.0
    for place in np.unique(arm):
        rows = arm == place
        seen = rows & is_seen
        if not seen.any():
            model[rows], unknown = overall, unknown + float(rows.mean())
            continue
        seen_share[place] = seen_weight[rows].sum() / rows.sum()
        fitted = _fitted(value[rows], weight=seen_weight[rows], predicted=predicted[rows])
        above_arm = overall - float(np.average(value[seen], weights=seen_weight[seen]))
        shrinkage = _PRIOR_ROWS / (_PRIOR_ROWS + seen.sum()) * above_arm
        model[rows] = fitted + shrinkage
    served = model + np.where(is_seen, value - model, 0.0) * seen_weight / seen_share[arm]
    return served, seen_share, unknown


def _fitted(value: Vector, *, weight: Vector, predicted: Vector) -> Vector:
    """Fitted value of every row, shape (n,): the weighted mean, plus a slope on `predicted`."""
    used = weight > 0.0
    w, y, x = weight[used], value[used], predicted[used]
    mean = float(w @ y / w.sum())
    flat = np.full(len(value), mean)
    if used.sum() < _FEWEST_FOR_SLOPE or np.isnan(x).all():
        return flat
    centre = float(np.nansum(w * x) / w[~np.isnan(x)].sum())
    distances = np.where(np.isnan(predicted), 0.0, predicted - centre)
    scatter = float(w @ distances[used] ** 2)
    if scatter <= 0.0:
        return flat
    rows = effective_rows(float(w.sum()), squares=float((w**2).sum()))
    slope = float(w @ (distances[used] * (y - mean))) / scatter * rows / (rows + _HALF_SLOPE)
    fitted: Vector = mean + slope * distances
    return fitted
