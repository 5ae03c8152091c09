"""Compares two ways of choosing arms by their logged draws. The intervals hold however often the log is looked at.

A report compares the served answers with always using one arm, a rollout compares a version with the champion.
docs/estimates.md has the estimator as nine formulas in the order of this code, with the reason for each constant.
"""

import math
from typing import NamedTuple

import numpy as np

from ragbandit.router.comparison import Difference
from ragbandit.router.reporting.estimates.bounds import (
    ALPHA,
    Possible,
    best_interval,
    control_intervals,
    within_the_range,
    worst_interval,
)
from ragbandit.router.reporting.estimates.draws import LEAST_CHANCE, Draws
from ragbandit.router.reporting.estimates.forecasts import outlook
from ragbandit.router.reporting.estimates.mean_intervals import Interval, mean_interval
from ragbandit.router.reporting.estimates.served import Served
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.types import Indices, Matrix, Vector

__all__ = ["ALPHA", "LEAST_CHANCE", "Compared", "Possible", "compared"]


class Compared(NamedTuple):
    difference: Difference
    #: doubly robust scores of both ways, whose means are compared, shape (2, n); None if they give no interval
    scores: Matrix | None = None
    #: questions that a verdict takes / questions so far; None if that is not known
    outlook: float | None = None


def compared(
    value: Vector,
    *,
    arm: Indices,
    pmf: Matrix,
    predicted: Matrix,
    second: Matrix,
    first: Matrix | None = None,
    least: float,
    most: float,
    counts: Vector | None = None,
    cluster: Indices | None = None,
    possible: Possible | None = None,
) -> Compared:
    """One way of choosing arms minus another, in the unit of `value`. A row is a question.

    Below FEWEST_EFFECTIVE effective rows there are no scores, and no interval except that of `possible`.

    value: values of the answers, the newest first, shape (n,); NaN if the value of an answer is not known
    arm: index of the drawn arm, shape (n,)
    pmf: probabilities of the K arms at the draw, shape (n, K)
    predicted: the policy's predictions for all arms before the draw, shape (n, K); NaN without a prediction
    first, second: probabilities of the arms in both ways, shape (n, K), 0 where `pmf` is 0. `first` is None for the
        answers that were served; `second` is then a single arm, whose value `possible` bounds if it could not be drawn
    least, most: smallest and largest possible value
    counts: 1 / (probability that the row's value is known), shape (n,); None if the probability is equal for all rows
    cluster: number of the cluster of each row whose value is known, shape (n,): errors in a cluster may be equal; None
        if each row is a cluster
    possible: bounds of the values, used if `first` is None; None if values have no bounds, and all rows could draw the
        arm
    """
    if np.isnan(value).all():
        return Compared(Difference())
    draws = Draws.of(value, arm=arm, pmf=pmf, predicted=predicted, counts=counts, cluster=cluster)
    if first is None:
        served = Served.of(draws, place=int(second[0].argmax()), least=least, most=most)
        return _served_minus_arm(served, possible=possible)
    return _policy_minus_policy(draws, first=first, second=second, span=most - least)


def _policy_minus_policy(draws: Draws, *, first: Matrix, second: Matrix, span: float) -> Compared:
    effective = min(draws.effective(policy) for policy in (first, second))
    if not effective >= FEWEST_EFFECTIVE:  # also for NaN
        return Compared(Difference(effective_rows=effective))
    scores = np.stack([draws.scores(first), draws.scores(second)])
    away = np.abs(first - second)
    farthest = draws.heavy(away, in_row=draws.ratio(away)) * span / len(draws.value)
    unknown = float(away[:, ~draws.is_tried].sum(axis=1).mean())
    ends = mean_interval(
        scores[0] - scores[1],
        effective=effective,
        farthest=(farthest, farthest),
        margin=unknown * span,
        alpha=ALPHA,
        cluster=draws.cluster,
    )
    means = float(scores[0].mean()), float(scores[1].mean())
    difference = _difference(ends.middle, ends=(ends.low, ends.high), means=means, effective=effective)
    return Compared(difference, scores)


def _served_minus_arm(served: Served, *, possible: Possible | None) -> Compared:
    """The served answers minus the answers of one arm.

    With `possible`, the interval is the intersection of two, whose errors add up to ALPHA. The first uses ratings of
    controls. The second uses no ratings of controls, so it varies less: the arm's answers have their best possible
    values for the low end, and their worst for the high end. Both use possible values if the arm could not be drawn.
    """
    draws, place = served.draws, served.place
    mean, controls = float(served.values.mean()), served.effective_controls(draws)
    effective = min(served.effective_rated(), controls)
    middle, drawn, scores = None, None, None
    if controls > 0.0:
        elsewhere = draws.elsewhere(place, away=served.away)
        middle = float((served.of_others - elsewhere).mean())
        if effective >= FEWEST_EFFECTIVE:
            scores = np.stack([served.values, np.where(served.is_other, 0.0, served.values) + elsewhere])
            drawn = control_intervals(served, elsewhere, possible=possible)
    best = None if possible is None else best_interval(served, possible)
    worst = None if possible is None else worst_interval(served, possible)
    low = max((ends.low for ends in (drawn and drawn[0], best) if ends is not None), default=-math.inf)
    high = min((ends.high for ends in (drawn and drawn[1], worst) if ends is not None), default=math.inf)
    if possible is not None:
        low, high = within_the_range(served, (low, high), possible=possible)
    if low == -math.inf or high == math.inf:
        return Compared(Difference(first=mean, effective_rows=effective))
    middle = None if middle is None else min(max(middle, low), high)
    means = mean, None if middle is None else mean - middle
    difference = _difference(middle, ends=(low, high), means=means, effective=effective)
    odds = served.away**2 / np.maximum(draws.pmf[:, place], LEAST_CHANCE)
    forecast = outlook(drawn, best=best, worst=worst, squared_weights=odds)
    return Compared(difference, None if middle is None else scores, forecast)


def _difference(
    middle: float | None, *, ends: Interval, means: tuple[float | None, float | None], effective: float
) -> Difference:
    first, second = means
    return Difference(estimate=middle, low=ends[0], high=ends[1], effective_rows=effective, first=first, second=second)
