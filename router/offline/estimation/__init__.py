"""The doubly robust estimate, its interval and its reward model, and the types that the offline tools share.

A Matrix has shape (n, K) unless stated otherwise: a row per decision, a column per arm.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from ragbandit.shared.confidence_sequences import doubly_robust
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import FeatureRows, Matrix, Vector

Choices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.object_]
#: hashes of ids or questions
Keys = npt.NDArray[np.uint64]

#: called with (name of the work, done, total); total is 0 if it is not known
Progress = Callable[[str, int, int], None]


def no_progress(_work: str, _done: int, _total: int) -> None:
    """A `Progress` that shows nothing."""


class Tally:
    """Base of dataclasses that hold sums over rows. Fields are merged by +, or by "merge" in the field's metadata."""

    def merged(self, other: Self) -> Self:
        tally: Any = self
        sums = {
            part.name: part.metadata.get("merge", _sum)(getattr(self, part.name), getattr(other, part.name))
            for part in fields(tally)
        }
        return type(self)(**sums)


def _sum(first: Any, second: Any) -> Any:
    if type(first) is dict:
        shared = {name: _sum(value, second[name]) for name, value in first.items() if name in second}
        return {**first, **second, **shared}
    return first.merged(second) if hasattr(first, "merged") else first + second


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


def scores(*, reward: Vector, action: Choices, logged: Matrix, candidate: Matrix, predicted: Matrix) -> Matrix:
    """Terms of the doubly robust estimate for each row (Dudik, Langford and Li 2011), from arrays of a checked `Log`.

    r is a row's reward, a its drawn arm, P the logged and Q the candidate's probabilities, and M the predictions of a
    reward model. The result has shape (3, n): the weight w = Q[a] / P[a]; the correction w (r - M[a]); the baseline,
    the sum of Q M over the arms. Correction + baseline estimates the candidate's mean reward. It is unbiased if P > 0
    for every arm with Q > 0, whatever the model.
    """
    drawn = np.arange(len(action)) * logged.shape[1] + action
    weight = np.take(candidate, drawn) / np.take(logged, drawn)
    return np.stack([weight, *doubly_robust(weight, share=candidate, arm=action, value=reward, guess=predicted)])


#: (low, high), in units of reward
Interval = tuple[float, float]
DifferenceVerdict = Literal["better", "worse", "cannot tell"]

#: in a direction in which the weights vary less than this share of their largest variation, they count as constant
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

    For each end, `_SHARE` copies of one extreme row are added to the log, of the row in `extremes` that moves the end
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
    """Regress the score on the weights with each of m extra rows. Returns (scores at weight 1, standard errors)."""
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
    corners = [(heavy[0], 0.0), (0.0, heavy[1])] if pair else [(heavy[0],)]
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


def verdict(interval: Interval) -> DifferenceVerdict:
    low, high = interval
    if low > 0.0:
        return "better"
    return "worse" if high < 0.0 else "cannot tell"


def rows_needed(interval: Interval, *, value: float, rows: int) -> int | None:
    """Number of rows that a log needs, in total, so that the interval around `value` excludes 0.

    Assumes that `value` stays the same, and that its distance to the interval's end shrinks like 1 / sqrt(rows). If
    `value` is the true difference, a log of this size gives a verdict in about half of the cases. Returns None if the
    interval excludes 0 already, if the value is 0, or if a number is not finite.
    """
    if verdict(interval) != "cannot tell" or not abs(value) > 0.0:
        return None
    times = (value - interval[0] if value > 0.0 else interval[1] - value) / abs(value)
    needed = rows * times * times
    return math.ceil(needed) if math.isfinite(needed) else None


def corrected(confidence: float, *, comparisons: int) -> float:
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


#: default penalty of `Ridge`, large because features of a question predict little of its reward
_PENALTY = 10.0
#: largest number of rows whose features are converted to float64 at a time
ROWS = 1 << 11


class Ridge:
    """Cross-fitted ridge regression per arm in closed form: call `add` for all rows, then `predict`.

    A reward model that predicts the rows it was fitted on gives intervals that are too narrow. So the rows are split
    into folds by question, and each fold is predicted by a model of the other folds (cross-fitting: Chernozhukov et
    al. 2018).

    With the features x of a question, the model of an arm is linear in z = (1, x). Without features it is the mean of
    the arm's rows and one prior row, which has the mean of all arms. penalty (> 0): strength of the prior on the
    coefficients of the features, see `_coefficients`.
    """

    def __init__(self, *, arms: int, folds: int, penalty: float = _PENALTY) -> None:
        self._arms, self._folds, self._penalty = arms, folds, penalty
        #: sums over each fold, with the t targets y of a row and its z = (1, d features): number of rows (folds,);
        #: y (folds, t); z z^T (folds, K, d+1, d+1); z y^T (folds, K, d+1, t). () before any row was added
        self.sums: tuple[Matrix, ...] = ()
        self._solved: dict[int, Matrix] = {}

    def add(self, features: FeatureRows | None, *, action: Choices, targets: Matrix, folds: Choices) -> None:
        """Add rows of a checked log: features (n, d) or None, action (n,), targets (n, t), folds (n,)."""
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
        both = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        pairs = zip(self.sums, other.sums, strict=True) if self.sums and other.sums else ()
        both.sums = tuple(first + second for first, second in pairs) or self.sums or other.sums
        return both

    def without_features(self) -> "Ridge":
        bare = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        if self.sums:
            count, total, gram, moment = self.sums
            bare.sums = count, total, gram[:, :, :1, :1], moment[:, :, :1]
        return bare

    def solve(self) -> None:
        """Fit the model and drop the sums. Afterwards the model can only predict."""
        for fold in range(self._folds if self.sums else 0):
            if np.delete(self.sums[0], fold).any():
                self._coefficients(fold)
        self.sums = ()

    def predict(self, features: FeatureRows | None, *, folds: Choices) -> Matrix:
        """Predict each row by the model of the other folds, shape (n, K, t). Raises InvalidInput if those are empty."""
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
        """The coefficients of z for every arm, learned on all other folds, shape (K, d+1, t).

        Let y be the target of a row, and D_j the penalty of coefficient j: 1 for the intercept, and penalty x d x
        (mean of x_j^2) for feature j. The coefficients b minimise the sum of |y - mean of y - z b|^2 over the arm's
        rows, plus the sum of D_j b_j^2. Both means are over the rows of all arms. So the scale of the features does not
        matter, and an arm without rows predicts the mean of all rows.
        """
        if fold in self._solved:
            return self._solved[fold]
        counts = self.sums[0] if self.sums else np.zeros(self._folds)
        if not np.delete(counts, fold).any():
            if counts.sum() == 1.0:
                message = "the log has one row: what a row would earn is learned from other rows"
                raise InvalidInput(message, field="log", remedy="replay a log of two rows or more")
            remedy = "use a longer log, or a fixed model"
            message = f"no rows outside of fold {fold}: a model has nothing to learn"
            raise InvalidInput(message, field="folds", remedy=remedy)
        count, total, gram, moment = (np.delete(sums, fold, axis=0).sum(axis=0) for sums in self.sums)
        size, mean = gram.shape[1], total / count
        scale = np.sqrt(np.einsum("kii->i", gram) / count)
        scale[scale == 0.0] = 1.0  # a feature that is 0 in all rows gets the coefficient 0
        prior = np.diag([1.0, *[self._penalty * (size - 1)] * (size - 1)])
        centred = (moment - gram[:, :, :1] * mean) / scale[:, None]  # the first column of z is 1
        coefficients: Matrix = np.linalg.solve(gram / scale / scale[:, None] + prior, centred) / scale[:, None]
        coefficients[:, 0] += mean
        self._solved[fold] = coefficients
        return coefficients


def _row_groups(groups: Choices) -> Iterator[tuple[int, Choices]]:
    """Yield (group, indices of at most ROWS of its rows). groups: shape (n,), whole numbers from 0."""
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups)).tolist()
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        for first in range(start, stop, ROWS):
            yield group, order[first : min(first + ROWS, stop)]
