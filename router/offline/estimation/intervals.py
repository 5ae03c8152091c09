"""Intervals for a value from one look at a log of fixed length: closed forms of the moments; and what they tell.

Rows are independent and have a score whose mean is the value, and one or two importance weights whose mean is 1. The
moments of the columns (score, weight, ...) are all that is read, so that a log may be read in pieces. A candidate with
arms that had no chance in the log has weights of a smaller mean: nothing here holds for it, which must be seen first.

Measured coverage: `python -m benchmarks.coverage`.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from ragbandit.router.offline.estimation.estimators import Moments
from ragbandit.router.offline.types import Matrix, Vector
from ragbandit.shared.errors import InvalidInput

#: (low, high), in units of reward
Interval = tuple[float, float]
#: of a difference to something else
DifferenceVerdict = Literal["better", "worse", "cannot tell"]

#: directions in which the weights scatter less than this share of their most are taken for constant
_FLAT = 1e-10
#: How much of a row the possible row counts: half of one covers too little where a few heavy rows decide, a whole one
#: too much elsewhere.
_SHARE = 0.75
#: from here on Student's quantile is the normal one to five digits
_MANY = 10**6
_NODES, _PARTS = np.polynomial.legendre.leggauss(48)


@dataclass(frozen=True, kw_only=True, slots=True)
class Extremes:
    """Extreme rows that a log might have held, and the range of the value."""

    #: possible rows (score, weight, ...), shape (m, 1 + c)
    rows: Matrix
    #: least and largest possible value, in units of reward
    low: float
    high: float


def normal(value: float, *, standard_error: float, confidence: float) -> Interval:
    """Value and so many standard errors to both sides.

    Misses too often where few rows carry the weight: at 95 % and 500 to 10,000 rows it holds the truth in .80 to .98 of
    the logs (IPS, SNIPS by the delta method, DR), least with skewed weights and rare successes.
    """
    reach = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2) * standard_error
    return value - reach, value + reach


def cressie_read(moments: Moments, *, confidence: float, extremes: Extremes, value: float | None = None) -> Interval:
    """Empirical likelihood with the Euclidean divergence (Cressie-Read power -2), of the columns (score, weight, ...).

    The least and the largest sum of q s, over shares q of the rows (of either sign) that sum to 1, keep the mean of
    every weight at 1 and are not too far from even (Karampatziakis, Langford and Mineiro 2020, "Empirical Likelihood
    for Contextual Bandits"). This is the regression of the score on the weights, read at weight 1, and Student's
    quantile of residual standard errors to both sides. To the rows comes a part of one that might have been seen, the
    worst of `extremes` for either side: heavy weights are rare, and a log that shows few of them looks surer than it
    is. (The paper adds a whole row, at the largest possible weight: safe, but up to twice as wide on logs where that
    weight hardly occurs.)

    `value` is the point estimate that goes with it; the interval is widened to contain it. Without rows enough to tell
    a residual variance, the interval is the possible range.
    """
    controls = len(moments.mean) - 1
    _checked(confidence)
    if moments.rows <= controls + 1:
        return extremes.low, extremes.high
    centre, error = _regressed(moments, extra=extremes.rows)
    reach = _student(confidence, freedom=moments.rows - controls - 1) * error
    low, high = float((centre - reach).min()), float((centre + reach).max())
    if value is not None:
        low, high = min(low, value), max(high, value)
    return min(max(low, extremes.low), extremes.high), max(min(high, extremes.high), extremes.low)


def _regressed(moments: Moments, *, extra: Matrix) -> tuple[Vector, Vector]:
    """Mean score at weights of 1 and its standard error, with each of m extra rows in turn, both of shape (m,)."""
    rows, total = moments.rows, moments.rows + _SHARE
    step = extra - moments.mean
    mean = moments.mean + step * (_SHARE / total)
    scatter = moments.scatter + step[:, :, None] * step[:, None, :] * (_SHARE * rows / total)
    cross = scatter[:, 1:, 0]
    slope = np.einsum("mij,mj->mi", np.linalg.pinv(scatter[:, 1:, 1:], rcond=_FLAT, hermitian=True), cross)
    left = np.maximum(scatter[:, 0, 0] - (slope * cross).sum(axis=1), 0.0)
    centre = mean[:, 0] + (slope * (1.0 - mean[:, 1:])).sum(axis=1)
    return centre, np.sqrt(left / (total * (rows - len(moments.mean))))


def weight_powers(pmf: Matrix, *, candidate: Matrix) -> Vector:
    """Sums over rows and arms of p w^2 and p w^3, shape (2,), w = candidate / p: they add up over pieces of a log.

    pmf (logged), candidate: shape (n, K). Arms that had no chance are left out.
    """
    weight = np.divide(candidate, pmf, out=np.zeros(pmf.shape), where=pmf > 0.0)
    return np.array([(candidate * weight).sum(), (candidate * weight**2).sum()])


def heavy_weight(powers: Vector) -> float:
    """Weight of a heavy row of this candidate, from its `weight_powers`: mean w^3 over mean w^2, at least 1.

    By this times the reward's scale the skewness of the scores moves an interval's ends (Johnson 1978, "Modified t
    tests and confidence intervals for asymmetrical populations"). The pmfs tell it, not the draws.
    """
    squares, cubes = powers.tolist()
    return max(1.0, cubes / squares) if squares > 0.0 else 1.0


def extreme_rows(
    heavy: Sequence[float],
    *,
    rewards: Interval,
    baseline: float = 0.0,
    minus_logged: bool = False,
    rating_weight: float = 1.0,
) -> Extremes:
    """The rows that move an interval most, and the range of the value.

    heavy: the candidate's `heavy_weight`; two of them where two candidates are compared, whose scores are
    b + (w1 - w2) (r - m), b a difference of baselines.
    rewards: least and largest possible reward. baseline: what the model predicts on average; 0 without a model (IPS).
    minus_logged: the reward is subtracted from the score: the candidate is compared with the policy that logged.
    rating_weight: largest 1 / chance of a rating, where most rewards are completed from few ratings.
    """
    pair = len(heavy) == 2
    if not (pair or len(heavy) == 1) or (pair and minus_logged):
        raise InvalidInput(f"{len(heavy)} weights", field="heavy", remedy="give one, or two to compare two candidates")
    corners = [(heavy[0], 0.0), (0.0, heavy[1])] if pair else [(heavy[0],)]
    # A heavy row that was rated besides counts as many: of the two, seldom met together, a part.
    stretch = math.sqrt(rating_weight)
    possible = rewards if stretch == 1.0 else [baseline + stretch * (r - baseline) for r in rewards]
    rows = [
        ((weights[0] - weights[1]) * (r - baseline), *weights)
        if pair
        else (baseline + weights[0] * (r - baseline) - (r if minus_logged else 0.0), *weights)
        for weights, r in itertools.product(corners, possible)
    ]
    if minus_logged:
        # Near the logged policy nearly all differences are 0: what decides are the few rows that it draws and the
        # candidate would not, and a log may show none of them that failed, or none that succeeded.
        rows += [(baseline - r, 0.0) for r in rewards]
    if rating_weight > 1.0:
        # Few ratings may show none that is rare, and a rating counts as many rows.
        rated = [rating_weight * (r - baseline) for r in rewards]
        if pair:
            rows += [row for one in rated for row in ((one, 1.0, 0.0), (-one, 0.0, 1.0))]
        else:
            rows += [(-one, 0.0) if minus_logged else (baseline + one, 1.0) for one in rated]
    least, most = rewards
    low, high = (least - most, most - least) if pair or minus_logged else rewards
    return Extremes(rows=np.array(rows), low=low, high=high)


def verdict(interval: Interval) -> DifferenceVerdict:
    """Verdict from an interval of (candidate - other): above 0, below 0, or neither."""
    low, high = interval
    if low > 0.0:
        return "better"
    return "worse" if high < 0.0 else "cannot tell"


def rows_needed(interval: Interval, *, value: float, rows: int) -> int | None:
    """About how many rows like these, in all, until an interval around this value leaves 0.

    The side of the interval that has to pass 0 shrinks like 1 / sqrt(rows). If the value is the true difference, so
    many rows settle it about every other time, as the value they give lies as often below as above the true one. None
    where 0 is passed already, and where the value is 0 or one of the numbers is not finite.
    """
    if verdict(interval) != "cannot tell" or not abs(value) > 0.0:
        return None
    times = (value - interval[0] if value > 0.0 else interval[1] - value) / abs(value)
    needed = rows * times * times
    return math.ceil(needed) if math.isfinite(needed) else None


def corrected(confidence: float, *, comparisons: int) -> float:
    """Confidence of each of so many intervals with which all hold at once with the given one (Bonferroni)."""
    if comparisons < 1:
        raise InvalidInput(f"{comparisons}", field="comparisons", remedy="count at least one")
    return 1.0 - (1.0 - _checked(confidence)) / comparisons


def _checked(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise InvalidInput(f"{confidence:g}", field="confidence", remedy="give a number between 0 and 1, as 0.95")
    return confidence


@functools.lru_cache(maxsize=256)
def _student(confidence: float, *, freedom: int) -> float:
    """T with P(|T| <= t) = confidence, for so many degrees of freedom.

    T = sqrt(freedom) tan(angle), where the angle has a density in proportion to cos^(freedom - 1): smooth and finite,
    so that a quadrature and a bisection do.
    """
    if freedom >= _MANY:
        return NormalDist().inv_cdf(0.5 + confidence / 2)
    scale = 2.0 / math.sqrt(math.pi) * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    # Beyond this angle nothing is left of the density, and before it the quadrature is exact enough.
    low, high = 0.0, math.acos(math.exp(-40.0 / freedom))
    for _ in range(60):
        angle = (low + high) / 2
        density = np.cos(angle * (_NODES + 1.0) / 2) ** (freedom - 1)
        inside = scale * angle / 2 * float(_PARTS @ density)
        low, high = (angle, high) if inside < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(high)
