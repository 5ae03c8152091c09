"""Fixed-sample intervals: empirical likelihood for logged draws, and its special case for paired outcomes.

An interval holds for one look that was fixed in advance. Source of the method: `cressie_read`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from ragbandit.router.comparison import Comparison, Difference, compare
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.types import ArmName, Matrix, Vector

#: (low, high), in units of reward
Interval = tuple[float, float]

#: maximum number of multiplications in one matrix product. OpenBLAS spreads larger products over waiting threads
_PRODUCT = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    rows: int
    mean: Vector  #: shape (k,); zeros if there are no rows
    scatter: Matrix  #: sum over the rows z of (z - mean)(z - mean)^T, shape (k, k)

    @classmethod
    def of(cls, *columns: Vector) -> "Moments":
        """The moments of columns of shape (n,). If a column contains NaN or infinity, its moments do too."""
        values = np.stack(columns)
        width, rows = values.shape
        if rows == 0:
            return cls(rows=0, mean=np.zeros(width), scatter=np.zeros((width, width)))
        mean = values.mean(axis=1)
        values -= mean[:, None]
        scatter, step = np.zeros((width, width)), max(_PRODUCT // width**2, 32)
        for start in range(0, rows, step):
            block = values[:, start : start + step]
            scatter += block @ block.T
        return cls(rows=rows, mean=mean, scatter=scatter)

    def merged(self, other: "Moments") -> "Moments":
        """The moments of both sets of rows together (Chan, Golub and LeVeque 1983)."""
        rows = self.rows + other.rows
        if 0 in (self.rows, other.rows):
            return other if self.rows == 0 else self
        step = other.mean - self.mean
        return Moments(
            rows=rows,
            mean=self.mean + step * (other.rows / rows),
            scatter=self.scatter + other.scatter + np.outer(step, step) * (self.rows * other.rows / rows),
        )

    def combined(self, matrix: Matrix) -> "Moments":
        """The moments of m linear combinations of the k columns. matrix: their coefficients, shape (m, k)."""
        return Moments(rows=self.rows, mean=matrix @ self.mean, scatter=matrix @ self.scatter @ matrix.T)


#: weights count as constant in a direction in which they vary less than this share of their largest variation
_FLAT = 1e-10
#: number of copies of an extreme row that are added to a log. 0.5 gives too narrow intervals if a few heavy rows
#: decide; 1 gives too wide intervals in other logs
_SHARE = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Extremes:
    """The most extreme rows that a log could have contained, and the bounds of the estimated value."""

    rows: Matrix  #: m rows, shape (m, 1 + c): the score of a row, then its weight for each of the c candidates
    low: float  #: smallest possible value, in units of reward
    high: float  #: largest possible value, in units of reward


def cressie_read(moments: Moments, *, confidence: float, extremes: Extremes, value: float | None = None) -> Interval:
    """Interval by empirical likelihood with the Euclidean divergence (Cressie-Read power -2).

    Each row of the log gets a share, which may be negative. The shares sum to 1, are not too far from equal shares, and
    give each candidate's weights the mean 1. The interval's ends are the smallest and the largest sum of share x score
    that such shares allow (Karampatziakis, Langford and Mineiro 2020, "Empirical Likelihood for Contextual Bandits").
    They equal the value at weight 1 of a regression of the scores on the weights, plus and minus Student's quantile
    times the standard error.

    For each end, `_SHARE` copies of one extreme row are added to the log: the row in `extremes` that moves the end
    most. Without it, a log with few heavy weights would give too narrow an interval. (The paper adds a whole row at the
    largest possible weight. If that weight hardly occurs, intervals get up to twice as wide.)

    moments: moments of the columns: score, then the weights of each candidate
    value: the point estimate; the interval is widened to contain it

    If a log has too few rows for a residual variance, the interval is the range in `extremes`.
    """
    controls = len(moments.mean) - 1
    if moments.rows <= controls + 1:
        return extremes.low, extremes.high
    centre, error = _regressed(moments, extra=extremes.rows)
    reach = _student(confidence, freedom=moments.rows - controls - 1) * error
    low, high = float((centre - reach).min()), float((centre + reach).max())
    if value is not None:
        low, high = min(low, value), max(high, value)
    return min(max(low, extremes.low), extremes.high), max(min(high, extremes.high), extremes.low)


def _regressed(moments: Moments, *, extra: Matrix) -> tuple[Vector, Vector]:
    """Regress score on weights, m times with an extra row. Returns (predictions at weights of 1, standard errors)."""
    rows, total = moments.rows, moments.rows + _SHARE
    step = extra - moments.mean
    mean = moments.mean + step * (_SHARE / total)
    scatter = moments.scatter + step[:, :, None] * step[:, None, :] * (_SHARE * rows / total)
    cross = scatter[:, 1:, 0]
    slope = np.einsum("mij,mj->mi", np.linalg.pinv(scatter[:, 1:, 1:], rcond=_FLAT, hermitian=True), cross)
    residual = np.maximum(scatter[:, 0, 0] - (slope * cross).sum(axis=1), 0.0)
    centre = mean[:, 0] + (slope * (1.0 - mean[:, 1:])).sum(axis=1)
    return centre, np.sqrt(residual / (total * (rows - len(moments.mean))))


def heavy_weight(powers: Vector) -> float:
    """Typical weight of a candidate's heavy rows, at least 1.

    Let p be the logged probability of an arm, and w the candidate's probability / p. The result is the expected cube of
    w, divided by the expected square of w. powers: sums of p w^2 and of p w^3 over the rows and arms.

    The skewness of the scores moves the ends of an interval by about this weight times the scale of the reward (Johnson
    1978, "Modified t tests and confidence intervals for asymmetrical populations").
    """
    squares, cubes = powers.tolist()
    return max(1.0, cubes / squares) if squares > 0.0 else 1.0


def extreme_rows(
    heavy: Sequence[float], *, rewards: Interval, baseline: float = 0.0, minus_logged: bool = False
) -> Extremes:
    """The extreme rows for the interval of one candidate, or of the difference of two candidates.

    heavy: `heavy_weight` of each candidate.
    baseline: mean prediction of the model; 0 without a model.
    minus_logged: True if the candidate is compared with the logged policy, so that scores are reduced by the reward.
    """
    pair = len(heavy) == 2
    corners: list[tuple[float, ...]] = [(heavy[0],)]
    if pair:
        # A candidate that is nearly the logged policy has the weight 1 in every row. A row of another weight would be
        # fitted exactly, and would show nothing of what the other candidate's heavy rows may be.
        corners = [(heavy[0], 0.0), (0.0, heavy[1]), (heavy[0], 1.0), (1.0, heavy[1])]
    rows = [
        ((weights[0] - weights[1]) * (r - baseline), *weights)
        if pair
        else (baseline + weights[0] * (r - baseline) - (r if minus_logged else 0.0), *weights)
        for weights, r in itertools.product(corners, rewards)
    ]
    if minus_logged:
        # If the candidate is close to the logged policy, nearly all differences are 0. The interval then depends on
        # the few rows that only the logged policy would draw, which may be all failures or all successes.
        rows += [(baseline - r, 0.0) for r in rewards]
    least, most = rewards
    low, high = (least - most, most - least) if pair or minus_logged else rewards
    return Extremes(rows=np.array(rows), low=low, high=high)


def corrected_confidence(confidence: float, *, comparisons: int) -> float:
    """Confidence for each of `comparisons` intervals, which together then hold with `confidence` (Bonferroni)."""
    return 1.0 - (1.0 - confidence) / comparisons


def _student(confidence: float, *, freedom: int) -> float:
    """Student's two-sided quantile (Abramowitz and Stegun 26.7.5), right to three digits from 7 degrees of freedom."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    powers = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(powers, start=1))


#: the quantities of a comparison
PARTS: Final = ("reward", "quality", "cost")
#: each of PARTS -> its value for each question, shape (n,)
Parts = Mapping[str, Vector]


def paired(
    first: str,
    second: str,
    *,
    second_arm: ArmName,
    first_parts: Parts,
    second_parts: Parts,
    span: float,
    unit: str = "cost",
    confidence: float = 0.95,
) -> Comparison:
    """Compare two ways whose outcomes are known for the same n questions. second, second_arm: see `Comparison`.

    span: largest possible reward minus smallest possible reward
    """
    differences = dict[str, Any]()
    for part in PARTS:
        values = np.concatenate([first_parts[part], second_parts[part], [0.0]])
        most = span if part == "reward" else max(float(np.ptp(values)), 1e-9)
        gap = mean_difference(first_parts[part] - second_parts[part], possible=(-most, most), confidence=confidence)
        differences[part] = replace(gap, first=float(first_parts[part].mean()), second=float(second_parts[part].mean()))
    count = len(first_parts["reward"])
    common: dict[str, Any] = {"questions": count, "rated": count, "unit": unit, "confidence": confidence}
    common["second_arm"] = second_arm
    return compare(first, second, design="paired outcomes", needed=FEWEST_EFFECTIVE, **differences, **common)


def mean_difference(values: Vector, *, possible: Interval, confidence: float) -> Difference:
    """Mean of paired differences, shape (n,), with its interval if there are enough. possible: range of a value."""
    rows, moments = len(values), Moments.of(values)
    mean = float(moments.mean[0])
    if rows < FEWEST_EFFECTIVE:
        return Difference(estimate=mean, effective_rows=float(rows))
    scored = Moments(rows=rows, mean=np.array([mean, 1.0]), scatter=np.diag([float(moments.scatter[0, 0]), 0.0]))
    extremes = extreme_rows([1.0], rewards=possible)
    low, high = cressie_read(scored, confidence=confidence, extremes=extremes, value=mean)
    return Difference(estimate=mean, low=low, high=high, effective_rows=float(rows))
