"""Evidence on a policy version since it entered its state. The split of rows into pages does not change the results."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.config.sections import RolloutSettings
from ragbandit.shared.confidence_sequences import (
    BURN_IN_EFFECTIVE,
    FEWEST_EFFECTIVE,
    BettingSequence,
    JudgeSlopes,
    Tried,
    asymptotic_width,
    doubly_robust,
    robust_scores,
)
from ragbandit.shared.types import surely_effective_rows

Array = npt.NDArray[np.float64]

#: two pmfs differ on a row if their total variation distance is larger than this
_SAME: Final = 1e-6
#: number of rows for which the asymptotic bound is tightest
_TUNED_ROWS: Final = 1000.0
#: a difference of at most this share of the reward's range is rounding, and no proof that a version is worse
_ROUNDING: Final = 1e-9
_POINTS: Final = 200
#: number of rows between two plotted points; at _POINTS points, every second point is dropped and the number doubles
_STRIDE: Final = 25

#: plotted point: (number of rows, difference, its lower bound, its upper bound), in units of the reward
Point = tuple[int, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """n draws over K arms. `pmf`, `candidate` and `champion`: shape (n, K), 0 for arms that were not offered."""

    ids: tuple[str, ...]
    arms: tuple[str, ...]
    arm: npt.NDArray[np.intp]  #: column of the drawn arm, shape (n,)
    pmf: Array  #: probabilities with which the arm was drawn
    candidate: Array
    champion: Array
    weight: Array  #: share of the candidate's pmf in `pmf`, shape (n,); 0 in shadow
    scores: Array  #: rewards predicted by the champion's policy, shape (n, K); NaN without a prediction

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, here: slice | npt.NDArray[np.bool_]) -> "Draws":
        columns = ("arm", "pmf", "candidate", "champion", "weight", "scores")
        ids = tuple(np.array(self.ids, dtype=object)[here])
        return replace(self, ids=ids, **{name: getattr(self, name)[here] for name in columns})

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

    @property
    def weights(self) -> Array:
        """Shape (3, n): importance weights of the candidate, their squares, and the expected squares of a draw."""
        squares = np.divide(self.candidate**2, self.pmf, out=np.zeros_like(self.pmf), where=self.pmf > 0.0)
        return np.stack([self.ratio, self.ratio**2, squares.sum(axis=1)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Draws with rewards, in the order of the candidate's ledger."""

    draws: Draws
    #: reward under the candidate's settings, shape (n,); if `judge` is set, NaN for answers without a person's rating
    reward: Array
    minimum: float
    maximum: float
    #: reward computed from the judge's score, shape (n,), NaN without a score; None if people rated too few answers
    judge: Array | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """Draws with their outcomes, rated or not, in the order in which the outcomes were stored."""

    draws: Draws
    failed: Array  #: 1.0 if the answer failed, else 0.0, shape (n,)
    seconds: Array  #: duration of the answer, seconds; NaN if not reported
    cost: Array


#: an arm's mean is computed as if the arm had this number of additional rows, each with the mean of all arms
_PRIOR: Final = 2.0


@dataclass(kw_only=True, slots=True)
class Predictions:
    """Predicts values in [0, 1] by the logged scores or the arms' means, whichever had smaller errors so far."""

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
        overall = (self._total + np.cumsum(value) - value + 0.5) / (rows + 1.0)
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
        if len(value):
            self._behind = float(behind[-1])
        chosen: Array = np.where((known & (behind - worth < 0.0))[:, None], scores, means)
        return chosen


def note_rows(digest: "hashlib._Hash", ids: Sequence[str], *columns: Array) -> None:
    """Add rows to a hash. The hash does not depend on how the rows are split into pages."""
    for key, *numbers in zip(ids, *columns, strict=True):
        digest.update(f"{key} {[float(number) for number in numbers]!r}\n".encode())


def tried_of(rows: int, weights: Array, *, needed: int = FEWEST_EFFECTIVE, differing: float = math.inf) -> Tried:
    """Amount of data. weights: sums of `Draws.weights`. differing: number of rows on which the policies differ."""
    total, squares, expected = map(float, weights)
    effective = surely_effective_rows(total, squares=squares, rows=rows, expected_squares=expected)
    effective = min(effective, differing)
    return Tried(draws=rows, judged=rows, effective=effective, questions=rows, needed=needed)


@dataclass(kw_only=True, slots=True)
class JudgeControl:
    """Uses the judge's scores as a control variate.

    Let b be a slope that was fitted to earlier ratings. A rated row gets the additional term b * (mean judge's score of
    the unrated rows since the last rating - judge's score of the rated row). If the rated answers are a random sample,
    the mean of this term is 0. Betting sequences do not use the term, because it widens the range of the values: this
    costs them more than the smaller variance gains.
    """

    slopes: JudgeSlopes = field(default_factory=JudgeSlopes)
    predictions: Predictions = field(default_factory=Predictions)
    #: (number, sum of scores) of the unrated answers that a judge scored since the last rating
    since: Array = field(default_factory=lambda: np.zeros(2))

    def add(self, draws: Draws, *, share: Array, value: Array, judge: Array) -> tuple[Array, Array, Array, Array]:
        """Add rows. Returns for rated rows (b, judge's score, predicted scores of all arms, mean of unrated scores)."""
        rated = ~np.isnan(value)
        judged = ~np.isnan(judge)
        guess = np.zeros(share.shape)
        slopes = self.slopes.before(draws.arms, arm=draws.arm, value=value, judge=judge)
        guess[judged] = self.predictions.before(draws.arms, arm=draws.arm[judged], value=judge[judged])
        g = np.nan_to_num(judge)
        scores = draws.robust(share, value=g, guess=guess)
        unrated = judged & ~rated
        upto = self.since[:, None] + np.cumsum([unrated, scores * unrated], axis=1)
        at = np.flatnonzero(rated)
        count, total = np.diff(upto[:, at], axis=1, prepend=0.0)
        self.since = upto[:, -1] - (upto[:, at[-1]] if len(at) else 0.0)
        b = np.where(judged[at], slopes[at] * count / (count + 1.0), 0.0)
        return b, g[at], guess[at], total / np.maximum(count, 1.0)


@dataclass(kw_only=True, slots=True)
class RewardEvidence:
    """Paired doubly robust difference of rewards, candidate minus champion.

    A betting sequence, which is exact for any number of rows, proves "better": a wrong promotion is served to all.
    An asymptotic sequence, which is faster, decides "worse" from BURN_IN_EFFECTIVE effective rows on: a wrong rollback
    only costs another rollout.
    """

    settings: RolloutSettings
    minimum: float = -1.0
    maximum: float = 1.0
    rows: int = 0
    #: number of rows after which the candidate proved to be worse; None if it did not
    worse_at: int | None = None
    points: list[Point] = field(default_factory=list)
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    better: BettingSequence | None = None
    _stride: int = _STRIDE
    #: sums of scores, squared scores, the three `Draws.weights`, and rows on which the policies differ
    _sums: Array = field(default_factory=lambda: np.zeros(6))
    _predictions: Predictions = field(default_factory=Predictions)
    _control: JudgeControl = field(default_factory=JudgeControl)

    def add(self, judged: Judged) -> None:
        if self.better is None:
            self.minimum, self.maximum = judged.minimum, judged.maximum
            null = self.settings.margin / self._range
            self.better = BettingSequence(floor=-1.0, null=null, alpha=self.settings.alpha)
        draws = judged.draws
        value = np.clip((judged.reward - self.minimum) / self._range, 0.0, 1.0)
        share = draws.candidate - draws.champion
        control = None
        if judged.judge is not None:
            judge = np.clip((judged.judge - self.minimum) / self._range, 0.0, 1.0)
            control = self._control.add(draws, share=share, value=value, judge=judge)
            rated = ~np.isnan(judged.reward)
            draws = draws.cut(rated)
            share = share[rated]
            value = value[rated]
        scores = np.clip((draws.scores - self.minimum) / self._range, 0.0, 1.0)
        guess = self._predictions.before(draws.arms, arm=draws.arm, value=value, scores=scores)
        cut = robust_scores(share=share, pmf=draws.pmf, arm=draws.arm, value=value, guess=guess)
        if control is None:
            plain = draws.robust(share, value=value, guess=guess)
        else:
            b, judge_value, judge_guess, mean = control
            plain = draws.robust(share, value=value - b * judge_value, guess=guess - b[:, None] * judge_guess)
            plain = plain + b * mean
        # If both policies agree, the score is 0 for any value; many such rows would look like certainty.
        differs = np.abs(share).sum(axis=1) > 2.0 * _SAME
        sums = np.stack([plain, plain**2, *draws.weights, differs])
        first = 0
        while first < len(draws):  # only up to the next point of the plot, so that points do not depend on the pages
            upto = min(len(draws), first + self._stride - self.rows % self._stride)
            self.better.add(cut[:, first:upto])
            self._take(sums[:, first:upto])
            first = upto
        note_rows(self.digest, judged.draws.ids, judged.reward, *([] if judged.judge is None else [judged.judge]))

    @property
    def difference(self) -> float:
        """Estimated difference, in units of the reward; 0 without rows."""
        return float(self._sums[0]) / self.rows * self._range if self.rows else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of the scores, in units of the reward; infinite for fewer than two rows."""
        if self.rows < 2:
            return math.inf
        mean, square = map(float, self._sums[:2] / self.rows)
        return math.sqrt(max(square - mean * mean, 0.0)) * self._range

    @property
    def effective(self) -> float:
        """Effective rows of the candidate: observed or expected, whichever is smaller."""
        return tried_of(self.rows, self._sums[2:5]).effective

    @property
    def tried(self) -> Tried:
        """Amount of data behind `difference`. Rows on which both policies agree do not count as effective."""
        return tried_of(self.rows, self._sums[2:5], needed=BURN_IN_EFFECTIVE, differing=float(self._sums[5]))

    @property
    def low(self) -> float:
        """Lower bound of the difference with confidence 1 - alpha, in units of the reward."""
        return -self._range if self.better is None else self.better.lower() * self._range

    @property
    def high(self) -> float:
        """Upper bound of the difference with confidence 1 - rollback_alpha; if data is missing, the reward's range."""
        if not self.tried.enough:
            return self._range
        width = self._half_width(np.array([float(self.rows)]))[0]
        return min(self._range, self.difference + self.deviation * float(width))

    @property
    def _range(self) -> float:
        return self.maximum - self.minimum

    def _take(self, sums: Array) -> None:
        """Add n rows. sums: what each row adds to `_sums`, shape (6, n)."""
        rows = self.rows + np.arange(1.0, sums.shape[1] + 1.0)
        running = self._sums[:, None] + np.cumsum(sums, axis=1)
        if self.worse_at is None:
            total, squares, ratios, ratio_squares, expected_squares, differing = running
            mean = total / rows
            deviation = np.sqrt(np.maximum(squares / rows - mean**2, 0.0))
            high = mean + deviation * self._half_width(rows)
            effective = np.minimum(ratios**2 / np.maximum(ratio_squares, 1e-12), rows**2 / expected_squares)
            enough = np.minimum(effective, differing) >= BURN_IN_EFFECTIVE
            worse = (high < -self.settings.harm / self._range - _ROUNDING) & enough
            if worse.any():
                self.worse_at = int(rows[np.argmax(worse)])
        self.rows = int(rows[-1])
        self._sums = running[:, -1]
        if self.tried.enough and self.rows % self._stride == 0:
            self.points.append((self.rows, self.difference, self.low, self.high))
            if len(self.points) >= _POINTS:
                self.points = self.points[1::2]
                self._stride *= 2

    def _half_width(self, rows: Array) -> Array:
        """Half-width of the one-sided asymptotic confidence sequence for scores with standard deviation 1."""
        return asymptotic_width(rows, alpha=self.settings.rollback_alpha, tightest_at=_TUNED_ROWS, sides=1)
