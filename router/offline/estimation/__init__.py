"""Estimators, their intervals and reward models, and the types that the offline tools share.

A Matrix has shape (n, K) where nothing else is said: a row per decision, a column per arm.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from ragbandit.shared.confidence_sequences import doubly_robust
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import FeatureRows, Matrix, Vector, effective_rows

#: indices of arms
Choices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
#: text, as Python strings
Strings = npt.NDArray[np.object_]
#: hashes of decision ids
Keys = npt.NDArray[np.uint64]

#: (name of the work, done, total); total 0 is not known
Progress = Callable[[str, int, int], None]


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Progress that is not shown."""


class Tally:
    """A dataclass of sums over rows. To merge, fields are added, or combined by `merge` of their metadata."""

    def merged(self, other: Self) -> Self:
        """The tally of both sets of rows."""
        mine: Any = self
        both = {
            part.name: part.metadata.get("merge", _summed)(getattr(self, part.name), getattr(other, part.name))
            for part in fields(mine)
        }
        return type(self)(**both)


def _summed(one: Any, other: Any) -> Any:
    if type(one) is dict:
        shared = {name: _summed(value, other[name]) for name, value in one.items() if name in other}
        return {**one, **other, **shared}
    return one.merged(other) if hasattr(one, "merged") else one + other


#: multiplications in one product: larger ones OpenBLAS spreads over threads, which wait for each other
_PRODUCT = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Moments of n rows with k columns."""

    rows: int
    #: shape (k,); zeros where there are no rows
    mean: Vector
    #: sum over the rows of (z - mean)(z - mean)^T, shape (k, k)
    scatter: Matrix

    @classmethod
    def of(cls, *columns: Vector) -> "Moments":
        """The moments of these columns, each of shape (n,); NaN where a number is not finite."""
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
        """The moments of the columns matrix @ z: linear combinations of these; matrix has shape (m, k)."""
        return Moments(rows=self.rows, mean=matrix @ self.mean, scatter=matrix @ self.scatter @ matrix.T)


#: the estimators by name
ESTIMATORS: Final = ("ips", "snips", "dm", "dr", "sndr")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimator:
    """An estimator by name; w: a row's weight Q[a] / P[a], M: the reward model. Raises InvalidInput for another name.

    ips    mean of w r: unbiased where P plays all that Q plays; can leave the range (Horvitz and Thompson 1952)
    snips  sum of w r over sum of w: a bias that fades as 1/n, and never outside the range of the rewards (Swaminathan
           and Joachims 2015)
    dm     mean of the model's rewards under Q, the direct method: as right as the model (Dudik, Langford and Li 2011)
    dr     the direct method plus the mean of w (r - M[a]): unbiased where IPS is, whatever the model (the same)
    sndr   the direct method plus the sum of w (r - M[a]) over the sum of w (Dudik, Erhan, Langford and Li 2014)
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in ESTIMATORS:
            known = ", ".join(ESTIMATORS)
            raise InvalidInput(f"{self.name!r} is not known", field="estimator", remedy=f"use one of {known}")

    @property
    def needs_model(self) -> bool:
        """It needs predicted rewards."""
        return self.name in ("dm", "dr", "sndr")

    @property
    def biased(self) -> bool:
        """Its bias does not fade with more rows: it has no interval."""
        return self.name == "dm"

    @property
    def self_normalised(self) -> bool:
        """The mean of the corrections is divided by that of the weights."""
        return self.name in ("snips", "sndr")

    @property
    def parts(self) -> Matrix:
        """(weight, correction, baseline) as combinations of a row's `scores`, shape (3, 4)."""
        correction = [0, 0, not self.biased, 0] if self.needs_model else [0, 1, 0, 0]
        return np.array([[1, 0, 0, 0], correction, [0, 0, 0, self.needs_model]], dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A value with what is needed to trust it."""

    #: NaN without rows, and without weight in a self-normalised estimate
    value: float
    #: (sum w)^2 / sum w^2 (Kish): as many on-policy rows would say as much
    effective_rows: float


def scores(*, reward: Vector, action: Choices, logged: Matrix, candidate: Matrix, predicted: Matrix) -> Matrix:
    """The parts of every estimator, shape (4, n): w, w r, w (r - M[a]), and the sum of Q M over the arms.

    The expected mean of w is 1 if no action is unsupported. The arrays must come from a checked `Log`.
    """
    drawn = np.arange(len(action)) * logged.shape[1] + action
    weight = np.take(candidate, drawn) / np.take(logged, drawn)
    robust = doubly_robust(weight, share=candidate, arm=action, value=reward, guess=predicted)
    return np.stack([weight, weight * reward, *robust])


def estimated(estimator: Estimator, *, moments: Moments) -> Estimate:
    """The estimate from the moments of its `parts`, merged from as many pieces as there were.

    Value: mean correction + mean baseline; if self-normalised, mean correction / mean weight + mean baseline (SNIPS:
    Swaminathan and Joachims 2015; DR: Dudik, Erhan, Langford and Li 2014).
    """
    weight, correction, baseline = (float(mean) for mean in moments.mean)
    if estimator.self_normalised:
        correction = correction / weight if weight > 0.0 else math.nan
    value = correction + baseline if moments.rows else math.nan
    squares = float(moments.scatter[0, 0]) + moments.rows * weight * weight
    return Estimate(value=value, effective_rows=effective_rows(moments.rows * weight, squares=squares))


#: (low, high), in units of reward
Interval = tuple[float, float]
#: verdict on a difference
DifferenceVerdict = Literal["better", "worse", "cannot tell"]

#: directions in which the weights scatter less than this share of their most are taken for constant
_FLAT = 1e-10
#: How much of a row the possible row counts: half of one covers too little where a few heavy rows decide, a whole one
#: too much elsewhere.
_SHARE = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Extremes:
    """Extreme rows that a log might have held, and the range of the value."""

    #: possible rows (score, weight, ...), shape (m, 1 + c)
    rows: Matrix
    #: least and largest possible value, in units of reward
    low: float
    high: float


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


def heavy_weight(powers: Vector) -> float:
    """Weight of a heavy row of this candidate: mean w^3 over mean w^2, at least 1.

    powers: sums over rows and arms of p w^2 and p w^3, shape (2,), w = candidate / p: they add up over pieces of a log.

    By this times the reward's scale the skewness of the scores moves an interval's ends (Johnson 1978, "Modified t
    tests and confidence intervals for asymmetrical populations"). The pmfs tell it, not the draws.
    """
    squares, cubes = powers.tolist()
    return max(1.0, cubes / squares) if squares > 0.0 else 1.0


def extreme_rows(
    heavy: Sequence[float], *, rewards: Interval, baseline: float = 0.0, minus_logged: bool = False
) -> Extremes:
    """The rows that move an interval most, and the range of the value.

    heavy: the candidate's `heavy_weight`; two of them where two candidates are compared, whose scores are
    b + (w1 - w2) (r - m), b a difference of baselines.
    rewards: least and largest possible reward. baseline: what the model predicts on average; 0 without a model (IPS).
    minus_logged: the reward is subtracted from the score: the candidate is compared with the policy that logged.
    """
    pair = len(heavy) == 2
    corners = [(heavy[0], 0.0), (0.0, heavy[1])] if pair else [(heavy[0],)]
    rows = [
        ((weights[0] - weights[1]) * (r - baseline), *weights)
        if pair
        else (baseline + weights[0] * (r - baseline) - (r if minus_logged else 0.0), *weights)
        for weights, r in itertools.product(corners, rewards)
    ]
    if minus_logged:
        # Near the logged policy nearly all differences are 0: what decides are the few rows that it draws and the
        # candidate would not, and a log may show none of them that failed, or none that succeeded.
        rows += [(baseline - r, 0.0) for r in rewards]
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
    """Confidence of each interval so that all `comparisons` hold together with the given one (Bonferroni)."""
    return 1.0 - (1.0 - confidence) / comparisons


def _student(confidence: float, *, freedom: int) -> float:
    """T with P(|T| <= t) = confidence, to three digits if `freedom` is 7 or more (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    powers = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(powers, start=1))


#: prior rows of the features' weights: features of a question predict little of its reward
_PENALTY = 10.0
#: rows whose features are made float64, and multiplied, at a time
ROWS = 1 << 11


class Ridge:
    """Cross-fitted ridge regression per arm, closed form, of logs that are read in pieces: add all, then predict.

    A reward model that scores the rows it was fitted on makes an estimate that looks surer than it is. So the rows are
    dealt into folds by their questions, and each fold is predicted by what was learned on the others (cross-fitting:
    Chernozhukov et al. 2018).

    Linear in z = (1, x); without features the arm's mean, shrunk by one row's worth towards the mean of all arms.
    penalty: prior rows (> 0), in units of the features' mean squares and of 1 / d. Sums are kept per fold: of rows
    and of the targets y for all arms together, of z z^T and z y^T by arm.
    """

    def __init__(self, *, arms: int, folds: int, penalty: float = _PENALTY) -> None:
        self._arms, self._folds, self._penalty = arms, folds, penalty
        #: rows (folds,); y (folds, t); z z^T (folds, K, d+1, d+1); z y^T (folds, K, d+1, t); () before any row
        self.sums: tuple[Matrix, ...] = ()
        self._solved: dict[int, Matrix] = {}

    def add(self, features: FeatureRows | None, *, action: Choices, targets: Matrix, folds: Choices) -> None:
        """Take in rows: features (n, d) or None, action (n,), targets (n, t), folds (n,).

        The rows are a checked log's: nothing is checked here.
        """
        if not len(targets):
            return
        size, columns = 1 if features is None else 1 + features.shape[1], targets.shape[1]
        if not self.sums:
            shapes = ((), (columns,), (self._arms, size, size), (self._arms, size, columns))
            self.sums = tuple(np.zeros((self._folds, *shape)) for shape in shapes)
        self._solved.clear()
        count, total, gram, moment = self.sums
        for cell, rows in _row_groups(folds * self._arms + action):
            fold, arm = divmod(cell, self._arms)
            z = np.ones((len(rows), size))
            if features is not None:
                z[:, 1:] = features[rows]
            count[fold] += len(rows)
            total[fold] += targets[rows].sum(axis=0)
            gram[fold, arm] += z.T @ z
            moment[fold, arm] += z.T @ targets[rows]

    def merged(self, other: "Ridge") -> "Ridge":
        """A new model with the rows of both, which belong to one log."""
        both = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        pairs = zip(self.sums, other.sums, strict=True) if self.sums and other.sums else ()
        both.sums = tuple(mine + theirs for mine, theirs in pairs) or self.sums or other.sums
        return both

    def without_features(self) -> "Ridge":
        """A new model with the same rows without their features."""
        bare = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        if self.sums:
            count, total, gram, moment = self.sums
            bare.sums = count, total, gram[:, :, :1, :1], moment[:, :, :1]
        return bare

    def solve(self) -> None:
        """Fit, and forget the sums: what is left predicts, and is small."""
        for fold in range(self._folds if self.sums else 0):
            if np.delete(self.sums[0], fold).any():
                self._coefficients(fold)
        self.sums = ()

    def predict(self, features: FeatureRows | None, *, folds: Choices) -> Matrix:
        """Matrix for these rows from the other folds, shape (n, K, t). Raises InvalidInput without any."""
        predicted = np.empty((0, self._arms, self.sums[1].shape[1] if self.sums else 0))
        for fold, rows in _row_groups(folds):
            learned = self._coefficients(fold)  # (K, d+1, t)
            if not len(predicted):
                predicted = np.empty((len(folds), self._arms, learned.shape[2]))
            predicted[rows] = learned[:, 0]
            if features is not None:
                slopes = learned[:, 1:].transpose(1, 0, 2).reshape(features.shape[1], -1)  # (d, K t)
                predicted[rows] += (features[rows].astype(np.float64) @ slopes).reshape(len(rows), *predicted.shape[1:])
        return predicted

    def _coefficients(self, fold: int) -> Matrix:
        """The coefficients of z for every arm, learned on all folds but this, shape (K, d+1, t).

        Minimise the sum of |y - mean - z b|^2 + |b|^2 weighted by D: D of the intercept is 1, of feature j penalty d
        times the mean of x_j^2, means over the rows of all arms. So the scale of the features does not matter, and
        an arm without rows predicts the mean of all.
        """
        if fold in self._solved:
            return self._solved[fold]
        counts = self.sums[0] if self.sums else np.zeros(self._folds)
        if not np.delete(counts, fold).any():
            if counts.sum() == 1.0:
                what = "has one row: what a row would earn is learned from the other rows"
                raise InvalidInput(what, field="log", remedy="replay a log of two rows or more")
            remedy = "use a longer log, or a fixed model"
            raise InvalidInput(f"no rows outside of fold {fold}", field="folds", remedy=remedy)
        count, total, gram, moment = (np.delete(one, fold, axis=0).sum(axis=0) for one in self.sums)
        size, mean = gram.shape[1], total / count
        scale = np.sqrt(np.einsum("kii->i", gram) / count)
        scale[scale == 0.0] = 1.0  # such a feature is 0 everywhere, and so is its coefficient
        prior = np.diag([1.0, *[self._penalty * (size - 1)] * (size - 1)])
        apart = (moment - gram[:, :, :1] * mean) / scale[:, None]  # z's first column is 1
        found: Matrix = np.linalg.solve(gram / scale / scale[:, None] + prior, apart) / scale[:, None]
        found[:, 0] += mean
        self._solved[fold] = found
        return found


def _row_groups(groups: Choices) -> Iterator[tuple[int, Choices]]:
    """(group, its rows), ROWS of them at a time; groups (n,) are whole numbers from 0."""
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups)).tolist()
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        for first in range(start, stop, ROWS):
            yield group, order[first : min(first + ROWS, stop)]
