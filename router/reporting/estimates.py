"""Compares two ways of choosing arms by their logged draws. The intervals hold however often the log is looked at.

A report compares the served answers with always using one arm, a rollout compares a version with the champion.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ragbandit.router.comparison import MARGIN, Difference
from ragbandit.router.reporting.outlook import MeanInterval, outlook
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, doubly_robust
from ragbandit.shared.types import Matrix, Vector
from ragbandit.shared.types.ledger import effective_rows

Choices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
#: (below or low, above or high)
Interval = tuple[float, float]

#: probability that the interval misses the true difference at any look while the log grows
ALPHA: Final = 0.05
#: number of effective rows at which the interval is tightest
_NARROWEST_AT: Final = 100
#: the interval allows for this number of unseen rows with the heaviest weight and the most extreme value; see
#: `python -m benchmarks.coverage --places report`
_UNSEEN_ROWS: Final = 1.25
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
#: shares of ALPHA: of the interval from controls, of the low end from the best possible values, and of the high end
#: from the worst. The low end decides most verdicts, the high end hardly any
_ERROR_OF_CONTROLS: Final = 0.4
_ERROR_OF_BEST: Final = 0.5
_ERROR_OF_WORST: Final = 0.1
#: an arm with a smaller probability could not be drawn: the row says nothing about its answer, which has bounds only
LEAST_CHANCE: Final = 5e-4
#: share of Wilson's correction for skewness that is applied, so that the interval holds however often it is computed
_LEAN: Final = 0.95
#: the interval is shortened on the side without rare rows by at most this share of the standard error, so that a few
#: rows that lie far away by chance do not shorten it
_MOST_LEAN: Final = 0.5
_TINY: Final = 1e-300


@dataclass(frozen=True, kw_only=True, slots=True)
class Possible:
    """What each answer could have been worth, if its quality is unknown and its cost is known."""

    best: Vector | float  #: shape (n,), NaN without an outcome; a number if it is the same for every answer of any arm
    worst: Vector | float
    least: float  #: smallest value of any answer
    most: float  #: largest value of any answer
    #: predicted costs of all arms before the draw, shape (n, K), from which `best` and `worst` are predicted; None if
    #: these are the same for every answer
    cost: Matrix | None = None


class Compared(NamedTuple):
    difference: Difference
    #: doubly robust scores of both ways, whose means are compared, shape (2, n); None without an interval from them
    scores: Matrix | None = None
    #: how many times the questions so far a verdict takes; None if that is not known
    outlook: float | None = None


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
    possible: Possible | None = None,
) -> Compared:
    """One way of choosing arms minus another, in the unit of `value`. A row is a question.

    Below FEWEST_EFFECTIVE effective rows there are no scores, and no interval except that of `possible`.

    value: values of the answers, the newest first, shape (n,); NaN if the value of an answer is not known
    arm: index of the drawn arm, shape (n,)
    pmf: probabilities of the K arms at the draw, shape (n, K)
    predicted: the policy's predictions for all arms before the draw, shape (n, K); NaN without a prediction
    first, second: probabilities of the arms in both ways, shape (n, K), 0 where `pmf` is 0. `first` is None for the
        answers that were served; `second` is then a single arm. If it could not be drawn, `possible` bounds its value
    least, most: smallest and largest possible value
    counts: 1 / (probability that the row's value is known), shape (n,); None if the probability is equal for all rows
    possible: bounds of the values, used if `first` is None; None if values have no bounds. Then all rows could draw the
        arm
    """
    if np.isnan(value).all():
        return Compared(Difference())
    draws = _Draws.of(value, arm=arm, pmf=pmf, predicted=predicted, counts=counts)
    if first is None:
        return _Served.of(draws, place=int(second[0].argmax()), least=least, most=most).against(possible)
    effective = min(draws.effective(policy) for policy in (first, second))
    if not effective >= FEWEST_EFFECTIVE:  # also for NaN
        return Compared(Difference(effective_rows=effective))
    scores = np.stack([draws.scores(first), draws.scores(second)])
    away, span = np.abs(first - second), most - least
    farthest = draws.heavy(away, in_row=draws.ratio(away)) * span / len(value)
    unknown = float(away[:, ~draws.is_tried].sum(axis=1).mean())
    ends = _interval(
        scores[0] - scores[1],
        effective=effective,
        farthest=(farthest, farthest),
        margin=unknown * span,
        alpha=ALPHA,
    )
    means = float(scores[0].mean()), float(scores[1].mean())
    found = _difference(ends.middle, ends=(ends.low, ends.high), means=means, effective=effective)
    return Compared(found, scores)


def _difference(
    middle: float | None, *, ends: Interval, means: tuple[float | None, float | None], effective: float
) -> Difference:
    first, second = means
    return Difference(estimate=middle, low=ends[0], high=ends[1], effective_rows=effective, first=first, second=second)


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

    def of_values(self, value: Vector, *, predicted: Matrix) -> "_Draws":
        """The same draws with other values."""
        return _Draws.of(value, arm=self.arm, pmf=self.pmf, predicted=predicted, counts=None)

    def drawn(self, table: Matrix) -> Vector:
        column: Vector = table[np.arange(len(self.arm)), self.arm]
        return column

    def ratio(self, policy: Matrix) -> Vector:
        return self.drawn(policy) / self.drawn(self.pmf)

    def effective(self, policy: Matrix) -> float:
        """Effective rows for a policy, or for a part of every question; also computed from the probabilities of all
        questions, so that questions that hardly ever draw an arm count too.
        """
        squares = (policy**2 / self._chance / self.seen_share).sum(axis=1)
        expected = float((squares if self.counts is None else squares * self.counts).sum())
        return min(
            _effective(self.drawn(policy) * self.balanced),
            effective_rows(float(policy.sum()), squares=expected),
            self.effective_seen(),
        )

    def effective_seen(self, rows: Flags | slice = slice(None)) -> float:
        """Effective rows for the mean of the values that were drawn in these rows."""
        return _effective(self.seen_weight[rows] / self.seen_share[self.arm[rows]])

    def scores(self, policy: Matrix) -> Vector:
        models = np.zeros(policy.shape)
        for place in np.flatnonzero(policy.any(axis=0) & self.is_tried):
            weight = np.where(self.arm == place, self.balanced, 0.0)
            models[:, place] = _fitted(self.value, weight=weight, predicted=self.predicted[:, place])
        return self._scored(self.drawn(policy) * self.balanced, share=policy, models=models)

    def _scored(self, weight: Vector, *, share: Matrix, models: Matrix) -> Vector:
        correction, model = doubly_robust(weight, share=share, arm=self.arm, value=self.value, guess=models)
        return correction + model

    def elsewhere(self, place: int, *, away: Vector) -> Vector:
        """Scores whose mean estimates the sum over all questions of (1 - p) x (value of this arm), shape (n,).

        p: the arm's probability. A question that drew the arm has the weight (1 - p) / p for what its value differs
        from the model; other questions have the model's value. away: 1 - p, 0 where the arm could not be drawn
        """
        is_control = self.arm == place
        weight = np.where(is_control, self.seen_weight * away / self.pmf[np.arange(len(away)), self.arm], 0.0)
        share, models = np.zeros(self.pmf.shape), np.zeros(self.pmf.shape)
        share[:, place] = ~is_control
        models[:, place] = _fitted(self.value, weight=weight, predicted=self.predicted[:, place])
        return self._scored(weight * float(away.sum() / weight.sum()), share=share, models=models)

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

    def served(self) -> Vector:
        """The estimated value of each served answer, shape (n,)."""
        value, is_seen = self.value, self.seen_weight > 0.0
        model, overall = np.empty(len(value)), float(np.average(value[is_seen], weights=self.seen_weight[is_seen]))
        predicted = self.drawn(self.predicted)
        for place in np.unique(self.arm):
            rows = self.arm == place
            seen = rows & is_seen
            if not seen.any():
                model[rows] = overall
                continue
            fitted = _fitted(value[rows], weight=self.seen_weight[rows], predicted=predicted[rows])
            above_arm = overall - float(np.average(value[seen], weights=self.seen_weight[seen]))
            model[rows] = fitted + _PRIOR_ROWS / (_PRIOR_ROWS + seen.sum()) * above_arm
        share = (np.arange(self.pmf.shape[1]) == self.arm[:, None]).astype(np.float64)
        return self._scored(self.seen_weight / self.seen_share[self.arm], share=share, models=share * model[:, None])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Served:
    """The served answers, to be compared with the answers of one arm.

    A question that the arm itself answered has no difference of its own. It is a control of the other questions, with
    the weight (1 - p) / p, where p is the arm's probability: the effect on the treated with known p, doubly robust
    (Hahn 1998, "On the role of the propensity score in efficient semiparametric estimation of average treatment
    effects", section 3).
    """

    draws: _Draws
    place: int  #: the arm
    least: float
    most: float
    values: Vector  #: estimated value of each served answer
    is_other: Flags  #: whether another arm answered
    away: Vector  #: probability of other arms, 0 where the arm could not be drawn
    is_bounded: Flags  #: whether another arm answered since this arm could not be drawn

    @classmethod
    def of(cls, draws: _Draws, *, place: int, least: float, most: float) -> "_Served":
        chance, is_other = draws.pmf[:, place], draws.arm != place
        could = chance >= LEAST_CHANCE
        return cls(
            draws=draws,
            place=place,
            least=least,
            most=most,
            values=draws.served(),
            is_other=is_other,
            away=np.where(could, 1.0 - chance, 0.0),
            is_bounded=is_other & ~could,
        )

    def against(self, possible: Possible | None) -> Compared:
        """The difference; see `compared`.

        With bounds, the interval is the intersection of two, whose errors add up to ALPHA: of what controls were worth,
        and of what they could have been worth at best (low end) and at worst (high end). The second needs no rating of
        a control, and varies less. Where the arm could not be drawn, both have the best and the worst value.
        """
        alpha = ALPHA if possible is None else ALPHA * _ERROR_OF_CONTROLS
        mean, controls = float(self.values.mean()), self._controls(self.draws)
        effective = min(self._rated(), controls)
        middle, drawn, scores = None, None, None
        if controls > 0.0:
            other = self.draws.elsewhere(self.place, away=self.away)
            middle = float((np.where(self.is_other, self.values, 0.0) - other).mean())
            if effective >= FEWEST_EFFECTIVE:
                scores = np.stack([self.values, np.where(self.is_other, 0.0, self.values) + other])
                drawn = self._of_controls(other, alpha=alpha, possible=possible)
        best, worst = None, None
        if possible is not None:
            best = self._minus_possible(
                possible.best, bound=possible.most, error=ALPHA * _ERROR_OF_BEST, possible=possible
            )
            worst = self._minus_possible(
                possible.worst, bound=possible.least, error=ALPHA * _ERROR_OF_WORST, possible=possible
            )
        low = max((ends.low for ends in (drawn and drawn[0], best) if ends is not None), default=-math.inf)
        high = min((ends.high for ends in (drawn and drawn[1], worst) if ends is not None), default=math.inf)
        if possible is not None:
            # Only questions that another arm answers, or would have answered, differ.
            share = max(float(self.is_other.mean()), 1.0 - float(self.draws.pmf[:, self.place].mean()))
            farthest = share * (possible.most - possible.least)
            if low > -math.inf or farthest <= MARGIN:
                low = max(low, -farthest)
            if high < math.inf or farthest <= MARGIN:
                high = min(high, farthest)
        if low == -math.inf or high == math.inf:
            return Compared(Difference(first=mean, effective_rows=effective))
        middle = None if middle is None else min(max(middle, low), high)
        means = mean, None if middle is None else mean - middle
        found = _difference(middle, ends=(low, high), means=means, effective=effective)
        odds = self.away**2 / np.maximum(self.draws.pmf[:, self.place], LEAST_CHANCE)
        return Compared(found, None if middle is None else scores, outlook(drawn, best=best, worst=worst, odds=odds))

    def _of_controls(
        self, other: Vector, *, alpha: float, possible: Possible | None
    ) -> tuple[MeanInterval, MeanInterval]:
        """The intervals for the low and for the high end from what controls were worth."""
        options: dict[str, Any] = {"draws": self.draws, "alpha": alpha, "possible": possible}
        if possible is None or not self.is_bounded.any():
            ends = self._minus(other, **options)
            return ends, ends
        most, least = (np.where(self.is_bounded, bound, other) for bound in (possible.most, possible.least))
        return self._minus(most, **options), self._minus(least, **options)

    def _controls(self, draws: _Draws) -> float:
        """Effective number of controls; 0 if the arm's value was never seen, or could not be."""
        if not (draws.is_tried[self.place] and self.away.any()):
            return 0.0
        effective = draws.effective(self._at_place(self.away))
        return effective if effective > 0.0 else 0.0  # also for NaN

    def _at_place(self, column: Vector) -> Matrix:
        table = np.zeros_like(self.draws.pmf)
        table[:, self.place] = column
        return table

    def _rated(self) -> float:
        """Effective number of rated answers of other arms."""
        return self.draws.effective_seen(self.is_other)

    def _minus_possible(
        self, values: Vector | float, *, bound: float, error: float, possible: Possible
    ) -> MeanInterval | None:
        """The interval if the arm's answers had these values, of which one end is used; None with too few rows.

        bound: value where the arm could not be drawn. error: of the end that is used
        """
        draws = None
        if not isinstance(values, float) and self.away.any():
            predicted = self.draws.predicted if possible.cost is None else possible.cost
            draws = self.draws.of_values(values, predicted=predicted)
        controls = math.inf if draws is None else self._controls(draws)
        if not min(self._rated(), controls) >= FEWEST_EFFECTIVE:
            return None
        other = np.where(self.is_other, bound if draws is None and not isinstance(values, float) else values, 0.0)
        if draws is not None:
            other = np.where(self.is_bounded, bound, draws.elsewhere(self.place, away=self.away))
        return self._minus(other, draws=draws, alpha=2.0 * error, possible=possible)

    def _minus(self, other: Vector, *, draws: _Draws | None, alpha: float, possible: Possible | None) -> MeanInterval:
        """The interval of the difference from the arm's answers.

        other: scores of the arm's answers (`_Draws.elsewhere`). draws: where they come from; None if they are known
        """
        difference = np.where(self.is_other, self.values, 0.0) - other
        effective, farthest = self._rated(), self._farthest_own(possible)
        if draws is not None:
            squares = (difference - difference.mean()) ** 2
            parts = float(squares[self.is_other].sum()), float(squares[~self.is_other].sum())
            effective = _pooled(parts, rows=(effective, self._controls(draws)))
            # An answer of the arm lowers the difference if it is better than expected, at most the best possible.
            above, below = self._farthest(other, draws=draws)
            farthest = max(farthest[0], below), max(farthest[1], above)
        unknown = float((self.is_other & ~self.draws.is_tried[self.draws.arm]).mean())
        margin = unknown * (self.most - self.least)
        return _interval(difference, effective=effective, farthest=farthest, margin=margin, alpha=alpha)

    def _farthest_own(self, possible: Possible | None) -> Interval:
        """Amounts by which the most extreme unseen answer of other arms could lower and raise the mean difference."""
        draws, is_seen = self.draws, self.draws.seen_weight > 0.0
        rated = is_seen & self.is_other
        if is_seen[self.is_other].all():
            return 0.0, 0.0
        heavy = 1.0 / float(draws.seen_share[draws.arm[rated]].min())
        if draws.counts is not None:
            heavy = draws.heavy(np.zeros_like(draws.pmf), in_row=self.is_other.astype(np.float64))
        below, above = self._room(self.values)
        if possible is not None and not isinstance(possible.worst, float):  # these answers have known costs
            below = max(float((draws.value - possible.worst)[rated].mean()), self._least_room)
        return heavy * below / len(draws.arm), heavy * above / len(draws.arm)

    def _farthest(self, other: Vector, *, draws: _Draws) -> Interval:
        """Amounts by which the most extreme unseen answer of the arm could lower and raise the mean of `other`."""
        away = self._at_place(self.away)
        heavy = draws.heavy(away, in_row=draws.ratio(away)) / len(other)
        below, above = self._room(other)
        return heavy * below, heavy * above

    def _room(self, values: Vector) -> Interval:
        """How far a value may lie below and above the mean of these, each at least _LEAST_ROOM of the range."""
        mean = float(values[self.is_other].mean())
        return max(mean - self.least, self._least_room), max(self.most - mean, self._least_room)

    @property
    def _least_room(self) -> float:
        return _LEAST_ROOM * (self.most - self.least)


def _heaviest(squares: Vector | Matrix, weights: Vector | Matrix) -> float:
    total = float(squares.sum())
    return float((squares * weights).sum()) / total if total > 0.0 else 0.0


def _pooled(squares: Interval, *, rows: Interval) -> float:
    """Effective rows of the sum of two independent means, by the variance of each (Satterthwaite 1946).

    squares: sums of squared deviations of both. rows: their effective rows
    """
    total = squares[0] + squares[1]
    if total <= 0.0:
        return min(rows)
    return 1.0 / sum((square / total) ** 2 / count for square, count in zip(squares, rows, strict=True))


def _effective(weight: Vector) -> float:
    return effective_rows(float(weight.sum()), squares=float((weight**2).sum()))


def _interval(difference: Vector, *, effective: float, farthest: Interval, margin: float, alpha: float) -> MeanInterval:
    """The interval of the mean of the differences.

    farthest: amounts by which the most extreme unseen row could lower and raise the mean. margin: added to both sides
    """
    middle = float(difference.mean())
    if abs(middle) < _ROUNDING * float(np.abs(difference).max()):
        middle = 0.0
    variance = float(difference.var(ddof=1)) / len(difference) * effective / (effective - 2.0)
    below, _ = _standard_errors(difference - middle, variance=variance, farthest=farthest[0])
    _, above = _standard_errors(difference - middle, variance=variance, farthest=farthest[1])
    return MeanInterval(
        rows=difference,
        middle=middle,
        below=below,
        above=above,
        effective=effective,
        alpha=alpha,
        tightest_at=_NARROWEST_AT,
        margin=margin,
    )


def _standard_errors(deviations: Vector, *, variance: float, farthest: float) -> tuple[float, float]:
    """Returns the standard errors of a mean, as (error below the mean, error above the mean).

    Only few of the rare rows were seen. So the interval leans to the side on which they lie, as Wilson's interval of a
    share does (1927). On the other side, the interval allows for _UNSEEN_ROWS only as far as the log shows that rare
    rows may lie there. Neither error falls if `farthest` grows.

    deviations: the rows minus their mean, shape (n,)
    variance: variance of the mean
    farthest: amount that the most extreme row adds to the mean; at least the amount by which the rows lean is used
    """
    rows = deviations / len(deviations)
    lean = float(rows @ rows**2) / max(float(rows @ rows), _TINY)
    farthest = max(farthest, abs(lean))
    if farthest <= 0.0:
        return math.sqrt(variance), math.sqrt(variance)
    spread = rows / farthest
    rare = farthest / math.sqrt(1.0 + 2.0 * float(spread**2 @ spread**2))
    near, wide = (math.sqrt(variance + (_UNSEEN_ROWS * amount) ** 2) for amount in (math.hypot(lean, rare), farthest))
    towards = min(abs(lean), _MOST_LEAN * math.sqrt(variance))
    near = max(min(near, wide) - _LEAN * _UNSEEN_ROWS * towards, 0.0)
    wide += _LEAN * _UNSEEN_ROWS * abs(lean)
    return (near, wide) if lean > 0.0 else (wide, near)


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
