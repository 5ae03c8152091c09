"""Compares two ways of choosing arms by their logged draws. The intervals hold however often the log is looked at.

A report compares the served answers with always using one arm, a rollout compares a version with the champion.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.comparison import Difference
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, asymptotic_width
from ragbandit.shared.types import Matrix, Vector
from ragbandit.shared.types.ledger import effective_rows

Choices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

#: probability that the interval misses the true difference at any look while the log grows
ALPHA: Final = 0.05
#: number of effective rows at which the interval is tightest
_NARROWEST_AT: Final = 200
#: the interval allows for this number of unseen rows with the heaviest weight and the most extreme value; see
#: `python -m benchmarks.coverage --places report`
_UNSEEN_ROWS: Final = 1.5
#: share of the range of values by which an unseen value may differ from the mean, even if the mean is at its end
_LEAST_ROOM: Final = 0.1
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
    second: Matrix,
    first: Matrix | None = None,
    least: float,
    most: float,
    counts: Vector | None = None,
) -> tuple[Difference, Matrix | None]:
    """One way of choosing arms minus another, in the unit of `value`. A row is a question.

    Returns (difference, doubly robust scores of both ways, whose means it compares: shape (2, n)). Below
    FEWEST_EFFECTIVE effective rows there are no estimate, interval and scores, only the mean of what was served.

    value: values of the answers, the newest first, shape (n,); NaN if the value of an answer is not known
    arm: index of the drawn arm, shape (n,)
    pmf: probabilities of the K arms at the draw, shape (n, K)
    predicted: the policy's predictions for all arms before the draw, shape (n, K); NaN without a prediction
    first, second: probabilities of the arms in both ways, shape (n, K), 0 where `pmf` is 0. `first` is None for the
        answers that were served
    least, most: smallest and largest possible value
    counts: 1 / (probability that the row's value is known), shape (n,); None if the probability is equal for all rows
    """
    n, is_seen = len(value), ~np.isnan(value)
    if not is_seen.any():
        return Difference(), None
    draws = _Draws.of(value, arm=arm, pmf=pmf, predicted=predicted, counts=counts)
    served, unknown = draws.served()
    mean = None if first is not None else float(served.mean())
    effective = min(draws.effective(policy) for policy in (first, second) if policy is not None)
    if not effective >= FEWEST_EFFECTIVE:  # also for NaN
        return Difference(first=mean, effective_rows=effective), None
    span = most - least
    if first is None:
        scores = np.stack([served, draws.scores(second)])
        heavy = draws.heavy(second, in_row=1.0 - draws.ratio(second))
        unseen = 0.0 if is_seen.all() else 1.0 / float(draws.seen_share[arm[is_seen]].min())
        # An unseen answer of the second way lowers the difference if it is better than expected, at most the best
        # possible; an unseen answer that was served lowers it if it is worse.
        ours, theirs = (_room(float(row.mean()), least=least, most=most) for row in scores)
        below, above = max(heavy * theirs[1], unseen * ours[0]), max(heavy * theirs[0], unseen * ours[1])
    else:
        scores = np.stack([draws.scores(first), draws.scores(second)])
        away = np.abs(first - second)
        below = above = draws.heavy(away, in_row=draws.ratio(away)) * span
        unknown = float(away[:, ~draws.is_tried].sum(axis=1).mean())
    return _interval(scores, effective=effective, farthest=(below / n, above / n), margin=unknown * span), scores


def _room(mean: float, *, least: float, most: float) -> tuple[float, float]:
    """How far a value may lie below and above a mean, each at least _LEAST_ROOM of the range of values."""
    span = most - least
    return max(mean - least, _LEAST_ROOM * span), max(most - mean, _LEAST_ROOM * span)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Draws:
    """n draws over K arms, some of whose values were seen."""

    value: Vector
    arm: Choices
    pmf: Matrix
    predicted: Matrix
    counts: Vector | None
    seen_weight: Vector  #: `counts` of the seen rows, 0 for other rows, shape (n,)
    seen_share: Vector  #: share of seen rows of each arm, shape (K,); 1 for an arm without a seen row
    is_tried: Flags  #: whether a row of the arm was seen, shape (K,)
    balanced: Vector  #: `seen_weight` / probability of the drawn arm, scaled to the number of questions, shape (n,)

    @classmethod
    def of(cls, value: Vector, *, arm: Choices, pmf: Matrix, predicted: Matrix, counts: Vector | None) -> "_Draws":
        seen_weight = np.where(np.isnan(value), 0.0, 1.0 if counts is None else counts)
        arms, inverse = pmf.shape[1], seen_weight / pmf[np.arange(len(arm)), arm]
        drawn = np.bincount(arm, minlength=arms)
        seen, total = (np.bincount(arm, weights=weights, minlength=arms) for weights in (seen_weight, inverse))
        is_tried = seen > 0.0
        scale = (pmf > 0.0).sum(axis=0) / np.where(is_tried, total, 1.0)
        return cls(
            value=value,
            arm=arm,
            pmf=pmf,
            predicted=predicted,
            counts=counts,
            seen_weight=seen_weight,
            seen_share=np.where(is_tried, seen / np.maximum(drawn, 1), 1.0),
            is_tried=is_tried,
            balanced=inverse * scale[arm],
        )

    def drawn(self, table: Matrix) -> Vector:
        column: Vector = table[np.arange(len(self.arm)), self.arm]
        return column

    def ratio(self, policy: Matrix) -> Vector:
        return self.drawn(policy) / self.drawn(self.pmf)

    def effective(self, policy: Matrix) -> float:
        """Effective rows for a policy; also computed from the probabilities of all questions, so that questions that
        hardly ever draw an arm count too.
        """
        squares = (policy**2 / self._chance / self.seen_share).sum(axis=1)
        expected = float((squares if self.counts is None else squares * self.counts).sum())
        return min(
            _effective(self.drawn(policy) * self.balanced),
            effective_rows(float(len(self.arm)), squares=expected),
            _effective(self.seen_weight / self.seen_share[self.arm]),
        )

    def scores(self, policy: Matrix) -> Vector:
        models = np.zeros(policy.shape)
        for place in np.flatnonzero(policy.any(axis=0) & self.is_tried):
            weight = np.where(self.arm == place, self.balanced, 0.0)
            models[:, place] = _fitted(self.value, weight=weight, predicted=self.predicted[:, place])
        rest = np.where(self.balanced > 0.0, self.value - self.drawn(models), 0.0) * self.balanced
        scores: Vector = (policy * models).sum(axis=1) + self.drawn(policy) * rest
        return scores

    def heavy(self, policy: Matrix, *, in_row: Vector) -> float:
        """The weight of the heaviest rows: the mean of cubed weights divided by the mean of squared weights.

        It is computed from the probabilities (see `heavy_weight` in comparison/intervals).

        in_row: amount that the value of each row would add to the difference
        """
        if self.counts is not None:
            added = self.counts * np.abs(in_row) / self.seen_share[self.arm]
            return _heaviest(added**2 / self.counts, added)
        weights = policy / self._chance / self.seen_share
        return _heaviest(self.pmf * self.seen_share * weights**2, weights)

    @property
    def _chance(self) -> Matrix:
        return np.where(self.pmf > 0.0, self.pmf, np.inf)

    def served(self) -> tuple[Vector, float]:
        """Returns (estimated value of each served answer, share of the rows that drew an arm without any seen row)."""
        value, is_seen = self.value, self.seen_weight > 0.0
        model, overall = np.empty(len(value)), float(np.average(value[is_seen], weights=self.seen_weight[is_seen]))
        predicted, unknown = self.drawn(self.predicted), 0.0
        for place in np.unique(self.arm):
            rows = self.arm == place
            seen = rows & is_seen
            if not seen.any():
                model[rows], unknown = overall, unknown + float(rows.mean())
                continue
            fitted = _fitted(value[rows], weight=self.seen_weight[rows], predicted=predicted[rows])
            above_arm = overall - float(np.average(value[seen], weights=self.seen_weight[seen]))
            model[rows] = fitted + _PRIOR_ROWS / (_PRIOR_ROWS + seen.sum()) * above_arm
        rest = np.where(is_seen, value - model, 0.0) * self.seen_weight / self.seen_share[self.arm]
        return model + rest, unknown


def _heaviest(squares: Vector | Matrix, weights: Vector | Matrix) -> float:
    total = float(squares.sum())
    return float((squares * weights).sum()) / total if total > 0.0 else 0.0


def _effective(weight: Vector) -> float:
    return effective_rows(float(weight.sum()), squares=float((weight**2).sum()))


def _interval(scores: Matrix, *, effective: float, farthest: tuple[float, float], margin: float) -> Difference:
    """The mean difference of two rows of scores with its interval.

    farthest: amounts by which the most extreme unseen row could lower and raise the mean. margin: added to both sides
    """
    first, second = map(float, scores.mean(axis=1))
    difference = scores[0] - scores[1]
    middle = float(difference.mean())
    if abs(middle) < _ROUNDING * max(abs(first), abs(second)):
        middle = 0.0
    variance = float(difference.var(ddof=1)) / len(difference) * effective / (effective - 2.0)
    below, _ = _standard_errors(difference - middle, variance=variance, farthest=farthest[0])
    _, above = _standard_errors(difference - middle, variance=variance, farthest=farthest[1])
    times = asymptotic_width(effective, alpha=ALPHA, tightest_at=_NARROWEST_AT) * math.sqrt(effective)
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
