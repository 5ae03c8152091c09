"""Compares the served answers with always using one arm. The intervals hold however often the report is read."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.comparison import Difference
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, JudgeSlopes, asymptotic_width
from ragbandit.shared.types import Matrix, Vector
from ragbandit.shared.types.ledger import effective_rows

Choices = npt.NDArray[np.intp]

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
    against: int | Choices,
    least: float,
    most: float,
    judge: Vector | None = None,
    counts: Vector | None = None,
) -> tuple[Difference, Matrix | None]:
    """The served answers minus always using one arm, in the unit of `value`. A row is a question.

    Returns (difference, doubly robust scores of both ways, whose means it compares: shape (2, n)). Below
    FEWEST_EFFECTIVE effective rows there are no estimate, interval and scores, only the mean of what was served.

    value: values of the answers, the newest first, shape (n,); NaN if the value of an answer is not known
    arm: index of the drawn arm, shape (n,)
    pmf: probabilities of the K arms at the draw, shape (n, K); above 0 for `against` in every row
    predicted: the policy's predictions for all arms before the draw, shape (n, K); NaN without a prediction
    against: index of the arm to compare with, or one index for each row, shape (n,)
    least, most: smallest and largest possible value
    judge: a judge's scores in [0, 1], shape (n,), NaN without a score. Two intervals are computed: with the scores as a
        control variate, and without scores. Of the two upper ends, the end nearer to its estimate is returned, and of
        the lower ends too: scores may contain little information on rare losses
    counts: 1 / (probability that the row's value is known), shape (n,); None if the probability is equal for all rows
    """
    n = len(value)
    is_seen, is_drawn = ~np.isnan(value), arm == against
    is_seen_draw = is_drawn & is_seen
    at_arm = np.arange(n), np.broadcast_to(against, n)

    if not is_seen.any():
        return Difference(), None
    seen_weight = np.where(is_seen, 1.0 if counts is None else counts, 0.0)
    plain = None
    adjustment = np.full(n, np.nan)
    if judge is not None:
        plain, _ = compared(
            value, arm=arm, pmf=pmf, predicted=predicted, against=against, least=least, most=most, counts=counts
        )
        adjustment = _judge_adjustment(value, arm=arm, judge=judge, least=least, most=most)
    predicted_drawn = predicted[np.arange(n), arm]
    served, seen_share, unknown = _served(
        value, seen_weight=seen_weight, arm=arm, predicted=predicted_drawn, adjustment=adjustment
    )
    if not is_seen_draw.any():
        return Difference(first=float(served.mean())), None
    inverse, rated = 1.0 / pmf[at_arm], float(seen_share[at_arm[1]].min())
    weight = np.where(is_seen_draw, inverse * seen_weight, 0.0)
    served_weight = seen_weight / seen_share[arm]
    effective = min(
        effective_rows(float(weight.sum()), squares=float((weight**2).sum())),
        # computed from the probabilities of all questions, so that questions that hardly ever draw the arm count too
        rated * effective_rows(float(n), squares=float((inverse if counts is None else inverse * counts).sum())),
        effective_rows(float(served_weight.sum()), squares=float((served_weight**2).sum())),
    )
    if not effective >= FEWEST_EFFECTIVE:  # also for NaN
        return Difference(first=float(served.mean()), effective_rows=effective), None
    model = _fitted(value, weight=weight, predicted=predicted[at_arm])
    centred = _centred(adjustment, weight=np.where(is_drawn, inverse, 0.0))
    always = model + np.where(is_seen_draw, value - model - centred, 0.0) * weight * (n / weight.sum())
    always += centred * inverse * (n / inverse[is_drawn].sum())
    difference = served - always
    variance = float(difference.var(ddof=1)) / n * effective / (effective - 2.0)
    # `heavy` is the weight of the heaviest rows, computed from the probabilities: the mean of cubed weights divided by
    # the mean of squared weights (see `heavy_weight` in comparison/intervals).
    if counts is None:
        heavy = float((inverse**2).sum() / inverse.sum()) / rated
        heavy = max(heavy, 0.0 if is_seen.all() else float(1.0 / seen_share[arm[is_seen]].min()))
    else:  # the weight of a row is the amount that its label would add to the difference
        added = counts * np.abs(1.0 - np.where(is_drawn, inverse, 0.0))
        heavy = float((added**3 / counts).sum() / (added**2 / counts).sum()) / rated
    middle = float(difference.mean())
    first, second = float(served.mean()), float(always.mean())
    if abs(middle) < _ROUNDING * max(abs(first), abs(second)):
        middle = 0.0
    below, above = _standard_errors(difference - middle, variance=variance, farthest=heavy * (most - least) / n)
    width = float(asymptotic_width(np.array([effective]), alpha=ALPHA, tightest_at=_NARROWEST_AT, sides=2)[0])
    times, margin = width * math.sqrt(effective), unknown * (most - least)
    low, high = middle - times * below - margin, middle + times * above + margin
    if plain is not None and plain.estimate is not None and plain.low is not None and plain.high is not None:
        low = min(middle, plain.low if plain.estimate - plain.low < middle - low else low)
        high = max(middle, plain.high if plain.high - plain.estimate < high - middle else high)
    found = Difference(estimate=middle, low=low, high=high, effective_rows=effective, first=first, second=second)
    return found, np.stack([served, always])


def _judge_adjustment(value: Vector, *, arm: Choices, judge: Vector, least: float, most: float) -> Vector:
    """Value that the judge's score predicts for each row, up to a constant, shape (n,); NaN without a score."""
    names, oldest_first = tuple(map(str, range(int(arm.max()) + 1))), slice(None, None, -1)
    scaled = ((value - least) / (most - least))[oldest_first]
    slopes = JudgeSlopes().before(names, arm=arm[oldest_first], value=scaled, judge=judge[oldest_first])[oldest_first]
    return np.asarray(slopes * (most - least) * (judge - 0.5))


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


def _served(
    value: Vector, *, seen_weight: Vector, arm: Choices, predicted: Vector, adjustment: Vector
) -> tuple[Vector, Vector, float]:
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
        model[rows] = fitted + shrinkage + _centred(adjustment[rows], weight=np.ones(int(rows.sum())))
    served = model + np.where(is_seen, value - model, 0.0) * seen_weight / seen_share[arm]
    return served, seen_share, unknown


def _centred(adjustment: Vector, *, weight: Vector) -> Vector:
    """The adjustment minus its weighted mean, shape (n,); 0 in rows without a score or weight."""
    used = np.where(np.isnan(adjustment), 0.0, weight)
    mean = np.nansum(used * adjustment) / max(used.sum(), _TINY)
    return np.asarray(np.where(used > 0.0, adjustment - mean, 0.0))


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
