"""The interval of a mean difference, valid at every look while the log grows (docs/estimates.md, steps 6 and 7)."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ragbandit.shared.confidence_sequences import asymptotic_width
from ragbandit.shared.types import Indices, Vector

#: (below or low, above or high)
Interval = tuple[float, float]

#: number of effective rows at which the interval is tightest
NARROWEST_AT: Final = 100
#: the interval allows for this number of unseen rows with the heaviest weight and the most extreme value
UNSEEN_ROWS: Final = 1.25
#: share of Wilson's correction for skewness that is applied, so that the interval holds however often it is computed
LEAN: Final = 0.95
#: the interval is shortened on the side without rare rows by at most this share of the standard error, so that a few
#: rows that lie far away by chance do not shorten it
MOST_LEAN: Final = 0.5
#: a mean below this share of the largest difference in a row is rounding, and is set to 0
ROUNDING: Final = 1e-9
#: smallest sum of squares that divides another sum: equal rows have the sum of squares 0
TINY: Final = 1e-300


@dataclass(frozen=True, kw_only=True)
class MeanInterval:
    """An interval of a mean difference, and the figures from which it was computed."""

    rows: Vector  #: differences d, one for each cluster, shape (clusters,)
    middle: float
    below: float  #: standard error of the low end
    above: float  #: standard error of the high end
    effective: float  #: effective rows R
    alpha: float
    margin: float  #: width that is added on both sides

    @cached_property
    def variance(self) -> float:
        """Variance of the mean of the rows; cached, since a forecast reads it for each of its multiples."""
        return float(self.rows.var(ddof=1)) / len(self.rows)

    @property
    def low(self) -> float:
        return self.middle - self.times(self.effective) * self.below - self.margin

    @property
    def high(self) -> float:
        return self.middle + self.times(self.effective) * self.above + self.margin

    def times(self, effective: float) -> float:
        """Distance of each end from the middle, in standard errors, with this number of effective rows."""
        return asymptotic_width(effective, alpha=self.alpha, tightest_at=NARROWEST_AT) * math.sqrt(effective)


def mean_interval(
    difference: Vector,
    *,
    effective: float,
    farthest: Interval,
    margin: float,
    alpha: float,
    cluster: Indices | None = None,
) -> MeanInterval:
    """The interval of the mean of the differences d.

    farthest: amounts F by which the most extreme unseen cluster could lower and raise the mean. margin: width that is
    added on both sides. cluster: see `Draws`
    """
    difference = difference if cluster is None else by_cluster(difference, cluster)
    middle = float(difference.mean())
    if abs(middle) < ROUNDING * float(np.abs(difference).max()):
        middle = 0.0
    variance = float(difference.var(ddof=1)) / len(difference) * effective / (effective - 2.0)
    below, _ = standard_errors(difference - middle, variance=variance, farthest=farthest[0])
    _, above = standard_errors(difference - middle, variance=variance, farthest=farthest[1])
    return MeanInterval(
        rows=difference, middle=middle, below=below, above=above, effective=effective, alpha=alpha, margin=margin
    )


def by_cluster(difference: Vector, cluster: Indices) -> Vector:
    """One difference for each cluster, with the same mean: the deviations of its rows are summed."""
    mean = float(difference.mean())
    sums: Vector = np.bincount(cluster, weights=difference - mean).astype(np.float64)
    return mean + sums * (len(sums) / len(difference))


def standard_errors(deviations: Vector, *, variance: float, farthest: float) -> Interval:
    """Returns the standard errors of a mean, as (error below the mean, error above the mean).

    Only few of the rare rows were seen, so the interval is longer on their side, as Wilson's interval of a share is
    (1927). On the other side, the interval allows for UNSEEN_ROWS only as far as the log shows that rare rows may lie
    there. Neither error falls if `farthest` grows.

    deviations: the rows minus their mean, shape (n,)
    variance: variance of the mean
    farthest: amount that the most extreme row adds to the mean; the rows' own lean if that is larger
    """
    rows = deviations / len(deviations)
    lean = float(rows @ rows**2) / max(float(rows @ rows), TINY)
    farthest = max(farthest, abs(lean))
    if farthest <= 0.0:
        return math.sqrt(variance), math.sqrt(variance)
    spread = rows / farthest
    rare = farthest / math.sqrt(1.0 + 2.0 * float(spread**2 @ spread**2))
    near, wide = (math.sqrt(variance + (UNSEEN_ROWS * amount) ** 2) for amount in (math.hypot(lean, rare), farthest))
    towards = min(abs(lean), MOST_LEAN * math.sqrt(variance))
    near = max(min(near, wide) - LEAN * UNSEEN_ROWS * towards, 0.0)
    wide += LEAN * UNSEEN_ROWS * abs(lean)
    return (near, wide) if lean > 0.0 else (wide, near)
