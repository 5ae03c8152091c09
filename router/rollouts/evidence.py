"""Evidence on a policy version since it entered its state. The split of rows into pages does not change the results."""

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.comparison import Difference
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, asymptotic_width, doubly_robust
from ragbandit.shared.types import surely_effective_rows

Array = npt.NDArray[np.float64]

#: smaller differences between two probabilities are rounding
_ROUNDING: Final = 1e-6
#: number of rows for which the interval is tightest
_TUNED_ROWS: Final = 1000.0
#: the interval allows for this number of unseen rows, each as extreme as possible; see `LiveDifference`
_UNSEEN_ROWS: Final = 2.0
#: a point is plotted every 25 rows; after 625 rows, whenever their number has grown by a 25th
_STRIDE: Final = 25

#: plotted point: (number of rows, difference, its lower bound, its upper bound), in units of the reward
Point = tuple[int, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """n draws over K arms. `pmf`, `candidate` and `champion`: shape (n, K), 0 for arms that were not offered."""

    arms: tuple[str, ...]
    arm: npt.NDArray[np.intp]  #: column of the drawn arm, shape (n,)
    pmf: Array  #: probabilities with which the arm was drawn
    candidate: Array
    champion: Array
    scores: Array  #: rewards predicted by the champion's policy, shape (n, K); NaN without a prediction

    def __len__(self) -> int:
        return len(self.arm)

    def cut(self, here: slice | npt.NDArray[np.bool_]) -> "Draws":
        columns = ("arm", "pmf", "candidate", "champion", "scores")
        return replace(self, **{name: getattr(self, name)[here] for name in columns})

    def drawn(self, pmf: Array) -> Array:
        probabilities: Array = pmf[np.arange(len(self.arm)), self.arm]
        return probabilities

    def robust(self, share: Array, *, value: Array, guess: Array) -> Array:
        """Doubly robust estimate of sum(share x expected value of the arm), for each draw. guess: predicted values."""
        weight = self.drawn(share) / self.drawn(self.pmf)
        return np.add(*doubly_robust(weight, share=share, arm=self.arm, value=value, guess=guess))

    @property
    def ratio(self) -> Array:
        """Importance weights of the candidate, shape (n,)."""
        return self.drawn(self.candidate) / self.drawn(self.pmf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Draws with rewards, in the order of the candidate's ledger."""

    draws: Draws
    reward: Array  #: reward under the candidate's settings, shape (n,)
    minimum: float
    maximum: float


#: an arm's mean is computed as if the arm had this number of additional rows, each with the mean of all arms
_PRIOR: Final = 2.0


@dataclass(kw_only=True, slots=True)
class Predictions:
    """Predicts values by the logged scores or the arms' means, whichever had smaller errors so far."""

    start: float = 0.5  #: prediction before the first row
    _count: dict[str, float] = field(default_factory=dict)
    _sum: dict[str, float] = field(default_factory=dict)
    _rows: float = 0.0
    _total: float = 0.0
    #: summed squared errors of the logged scores, minus those of the arms' means; rows with NaN scores are skipped
    _behind: float = 0.0

    def before(
        self, arms: tuple[str, ...], *, arm: npt.NDArray[np.intp], value: Array, scores: Array | None = None
    ) -> Array:
        """Predict the values of each row from the rows before it, shape (n, K), then add all rows to the state."""
        hits = np.zeros((len(value), len(arms)))
        at = np.arange(len(value)), arm
        hits[at] = 1.0
        count = np.array([self._count.get(name, 0.0) for name in arms]) + np.cumsum(hits, axis=0)
        total = np.array([self._sum.get(name, 0.0) for name in arms]) + np.cumsum(hits * value[:, None], axis=0)
        rows = self._rows + np.arange(len(value))
        overall = (self._total + np.cumsum(value) - value + self.start) / (rows + 1.0)
        means = total - hits * value[:, None] + _PRIOR * overall[:, None]
        means /= count - hits + _PRIOR
        if len(value):
            self._count.update(zip(arms, map(float, count[-1]), strict=True))
            self._sum.update(zip(arms, map(float, total[-1]), strict=True))
            self._rows += len(value)
            self._total += float(value.sum())
        if scores is None:
            return means
        known = ~np.isnan(scores).any(axis=1)
        worth = np.where(known, (scores[at] - value) ** 2 - (means[at] - value) ** 2, 0.0)
        behind = self._behind + np.cumsum(worth)
        chosen: Array = np.where((known & (behind - worth < 0.0))[:, None], scores, means)
        self._behind += float(worth.sum())
        return chosen


@dataclass(kw_only=True, slots=True)
class LiveDifference:
    """Mean of a value per question, candidate - champion, with bounds that hold at every look.

    A row has a doubly robust score (Dudik, Erhan, Langford and Li 2014). A bound is the mean of the scores -+
    `asymptotic_width` x error, with error^2 = variance + (_UNSEEN_ROWS x farthest)^2 / rows. farthest is what a row can
    take from the score (lower bound) or add to it (upper bound), by its importance weight and the most extreme value.
    It is needed because an arm that rarely fails has no variance before its first failure: by the variance only, 20 of
    100 equal candidates in a canary of 5 % were better at a look within 1,500 decisions, if 2 of 100 answers are bad
    (with it none, tests/unit/router/rollouts/test_verdicts.py).
    """

    low_alpha: float
    high_alpha: float
    top: float = 1.0  #: largest value; smaller than the values so far, it rises with them. The smallest value is 0
    unit: float = 1.0  #: unit of the values in the difference
    least: float = 0.0  #: what the value 0 is in the difference
    rows: int = 0
    #: sums over the rows: see `columns`
    sums: Array = field(default_factory=lambda: np.zeros(10))
    predictions: Predictions = field(default_factory=Predictions)

    def add(self, draws: Draws, *, value: Array) -> None:
        guess = self.predictions.before(draws.arms, arm=draws.arm, value=value)
        self.take(self.columns(draws, value=value, guess=guess))

    def columns(self, draws: Draws, *, value: Array, guess: Array) -> Array:
        """What each row adds to `sums`, shape (10, n).

        Score, its square, the candidate's score, its weight w, w^2, the expectation of w^2; the expected square and
        cube of what the row can take from the score at most, and of what it can add.
        """
        share = draws.candidate - draws.champion
        share[np.abs(share) < _ROUNDING] = 0.0
        candidate = draws.robust(draws.candidate, value=value, guess=guess)
        chance = np.where(draws.pmf > 0.0, draws.pmf, np.inf)
        weight = share / chance
        top = np.maximum.accumulate(np.maximum(value, self.top))[:, None]
        self.top = float(top.max(initial=self.top))
        takes = np.where(weight > 0.0, weight * guess, weight * (guess - top))
        adds = np.where(weight > 0.0, weight * (top - guess), -weight * guess)
        plain = draws.robust(share, value=value, guess=guess)
        expected = [(draws.pmf * part**power).sum(axis=1) for part in (takes, adds) for power in (2, 3)]
        ratio, squares = draws.ratio, (draws.candidate**2 / chance).sum(axis=1)
        return np.stack([plain, plain**2, candidate, ratio, ratio**2, squares, *expected])

    def take(self, columns: Array) -> None:
        self.rows += columns.shape[1]
        self.sums += columns.sum(axis=1)

    @property
    def effective(self) -> float:
        """Effective rows of the candidate: observed or expected, whichever is smaller."""
        total, squares, expected = map(float, self.sums[3:6])
        return surely_effective_rows(total, squares=squares, rows=self.rows, expected_squares=expected)

    @property
    def difference(self) -> Difference:
        if not self.rows:
            return Difference()
        mean, square, first = map(float, self.sums[:3] / self.rows)
        low = high = None
        if self.effective >= FEWEST_EFFECTIVE:
            variance = max(square - mean**2, 0.0)
            low_width = self._half_width(variance, alpha=self.low_alpha, unseen=self.sums[6:8])
            high_width = self._half_width(variance, alpha=self.high_alpha, unseen=self.sums[8:])
            low, high = max(mean - low_width, -self.top) * self.unit, min(mean + high_width, self.top) * self.unit
        means = {"first": first * self.unit + self.least, "second": (first - mean) * self.unit + self.least}
        return Difference(estimate=mean * self.unit, low=low, high=high, effective_rows=self.effective, **means)

    def _half_width(self, variance: float, *, alpha: float, unseen: Array) -> float:
        """unseen: expected square and cube of what a row can add, or take from the score."""
        squares, cubes = map(float, unseen)
        farthest = _UNSEEN_ROWS * cubes / squares if squares > 0.0 else 0.0
        width = asymptotic_width(np.array([float(self.rows)]), alpha=alpha, tightest_at=_TUNED_ROWS, sides=1)
        return float(width[0]) * math.sqrt(variance + farthest**2 / self.rows)


@dataclass(kw_only=True, slots=True)
class RewardDifference(LiveDifference):
    """Difference of rewards. The values are shares of the reward's range."""

    points: list[Point] = field(default_factory=list)
    _next_point: int = _STRIDE

    def add_judged(self, judged: Judged) -> None:
        self.least, self.unit = judged.minimum, judged.maximum - judged.minimum
        draws, value = judged.draws, self._scaled(judged.reward)
        scores = self._scaled(draws.scores)
        guess = self.predictions.before(draws.arms, arm=draws.arm, value=value, scores=scores)
        columns = self.columns(draws, value=value, guess=guess)
        first = 0
        while first < len(draws):  # only up to the next point of the plot, so that points do not depend on the pages
            upto = min(len(draws), first + self._next_point - self.rows)
            self.take(columns[:, first:upto])
            first = upto
            if self.rows == self._next_point:
                self._plot()

    def _scaled(self, value: Array) -> Array:
        return np.clip((value - self.least) / self.unit, 0.0, 1.0)

    def _plot(self) -> None:
        now = self.difference
        if now.estimate is not None and now.low is not None and now.high is not None:
            self.points.append((self.rows, now.estimate, now.low, now.high))
        self._next_point += max(_STRIDE, self.rows // _STRIDE)
