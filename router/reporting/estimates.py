"""Estimates of "always one arm" against what was served, with intervals that hold at every look."""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.confidence_sequences import JudgeSlopes, Tried, asymptotic_width
from ragbandit.shared.types import Matrix, Vector
from ragbandit.shared.types.ledger import effective_rows

Choices = npt.NDArray[np.intp]

#: false alarms of an interval that is looked at again and again, and the effective rows at which it is narrowest
ALPHA: Final = 0.05
_NARROWEST_AT: Final = 200
#: rows of the heaviest weight and the farthest value that the interval allows for (python -m benchmarks.report)
_UNSEEN_ROWS: Final = 1.5
#: share of the means below which a difference is a rest of rounding
_REST: Final = 1e-9
#: rows of the mean of all that the mean of an arm is begun with
_BEGUN: Final = 2.0
#: fewest seen rows that a slope is fitted from, and effective rows at which it is halved
_FEWEST_OF_SLOPE: Final = 20
_HALF_SLOPE: Final = 20.0
#: share of Wilson's shift to the side of rare rows (skewness) that is used, so that it holds at every look
_LEAN: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What was served against always one arm, per question."""

    served: float | None = None
    """Mean of what was served; null: nothing is known of it."""
    always: float | None = None
    """Estimated mean if the arm had always been used; null, like the fields below, if it is not tried enough."""
    difference: float | None = None
    """`served` - `always`."""
    low: float | None = None
    """Lower end of its 95 % interval, which holds however often one looks."""
    high: float | None = None
    """Upper end of the interval."""
    draws: int
    """Questions that drew the arm."""
    seen: int
    """Draws of the arm with an outcome (costs), or a rating (quality)."""
    effective_rows: float
    """Effective rows of the comparison: how many rows of equal weight it is worth."""
    missing: str | None
    """Why there is no interval, in words; null if there is an interval."""


def compared(
    value: Vector,
    *,
    arm: Choices,
    pmf: Matrix,
    predicted: Matrix,
    against: int | Choices,
    least: float,
    most: float,
    judge: Vector | None = None,
    counts: Vector | None = None,
) -> Comparison:
    """The comparison with always the arm `against`, or that of each row, shape (n,), in the unit of the values.

    value: shape (n,), NaN if it is not seen, the newest first. arm: the drawn arm. pmf: shape (n, K), above 0 for
    `against` in every row. predicted: the policy's expectation of each arm before the draw, shape (n, K), NaN if it has
    none. least, most: bounds of a value. judge: scores of the answers, seen or not, shape (n,), in [0, 1], NaN without
    a score: a control variate. Each end of the interval is then the nearer one of the estimates with and without
    scores: on the side of rare losses, scores may be less informative than the losses. counts: the inverse of each
    row's probability to be seen, shape (n,), > 0; None if all are equally likely.
    """
    n, seen, mine, told = len(value), ~np.isnan(value), arm == against, np.full(len(value), np.nan)
    drawn, at = mine & seen, (np.arange(n), np.broadcast_to(against, n))

    def found(effective: float = 0.0, *, served: float | None = None) -> Comparison:
        tried = Tried(draws=int(mine.sum()), judged=int(drawn.sum()), effective=effective, questions=n)
        counts: dict[str, Any] = {"draws": tried.draws, "seen": tried.judged, "effective_rows": effective}
        return Comparison(**counts, missing=tried.missing, served=served)

    if not seen.any():
        return found()
    stands, counts = counts, np.where(seen, 1.0 if counts is None else counts, 0.0)
    plain = None
    if judge is not None:
        given: dict[str, Any] = {"arm": arm, "pmf": pmf, "predicted": predicted, "against": against}
        plain = compared(value, **given, least=least, most=most, counts=stands)
        told = _told(value, arm=arm, judge=judge, least=least, most=most)
    served, share, unknown = _served(value, counts=counts, arm=arm, guess=predicted[np.arange(n), arm], told=told)
    if not drawn.any():
        return found(served=float(served.mean()))
    inverse, rated = 1.0 / pmf[at], float(share[at[1]].min())
    weight = np.where(drawn, inverse * counts, 0.0)
    effective = min(
        effective_rows(float(weight.sum()), squares=float((weight**2).sum())),
        # By the probabilities only, including questions that hardly ever draw the arm.
        rated * effective_rows(float(n), squares=float((inverse if stands is None else inverse * stands).sum())),
        effective_rows(float((counts / share[arm]).sum()), squares=float(((counts / share[arm]) ** 2).sum())),
    )
    known = found(effective, served=float(served.mean()))
    if known.missing is not None:
        return known
    model = _fitted(value, weight=weight, predicted=predicted[at])
    scored = _centred(told, weight=np.where(mine, inverse, 0.0))
    always = model + np.where(drawn, value - model - scored, 0.0) * weight * (n / weight.sum())
    always += scored * inverse * (n / inverse[mine].sum())
    difference = served - always
    variance = float(difference.var(ddof=1)) / n * effective / (effective - 2.0)
    # Mean w^3 over mean w^2, by the probabilities (`heavy_weight` of offline/estimation).
    if stands is None:
        heavy = float((inverse**2).sum() / inverse.sum()) / rated
        heavy = max(heavy, 0.0 if seen.all() else float(1.0 / share[arm[seen]].min()))
    else:  # the same of what a label of each row would add to the difference, by its probability
        adds = stands * np.abs(1.0 - np.where(mine, inverse, 0.0))
        heavy = float((adds**3 / stands).sum() / (adds**2 / stands).sum()) / rated
    middle = float(difference.mean())
    if abs(middle) < _REST * max(abs(known.served or 0.0), abs(float(always.mean()))):
        middle = 0.0
    below, above = _reach(difference - middle, variance=variance, far=heavy * (most - least) / n)
    width = float(asymptotic_width(np.array([effective]), alpha=ALPHA, tightest_at=_NARROWEST_AT, sides=2)[0])
    times, edge = width * math.sqrt(effective), unknown * (most - least)
    low, high = middle - times * below - edge, middle + times * above + edge
    if plain is not None and plain.difference is not None and plain.low is not None and plain.high is not None:
        low = min(middle, plain.low if plain.difference - plain.low < middle - low else low)
        high = max(middle, plain.high if plain.high - plain.difference < high - middle else high)
    return replace(known, always=float(always.mean()), difference=middle, low=low, high=high)


def _told(value: Vector, *, arm: Choices, judge: Vector, least: float, most: float) -> Vector:
    """What a judge's score adds to the model of each row, up to a constant, shape (n,); NaN without a score."""
    names, newest = tuple(map(str, range(int(arm.max()) + 1))), slice(None, None, -1)
    scaled = ((value - least) / (most - least))[newest]
    slopes = JudgeSlopes().before(names, arm=arm[newest], value=scaled, judge=judge[newest])[newest]
    return np.asarray(slopes * (most - least) * (judge - 0.5))


def _reach(off: Vector, *, variance: float, far: float) -> tuple[float, float]:
    """(below, above): how far the interval of a mean reaches, in standard errors.

    off: the rows less their mean; far: what the farthest row adds to the mean. The variance grows towards the side of
    rare rows, of which few were seen: the interval leans to that side, as Wilson's interval (1927) of a share does. On
    the other side _UNSEEN_ROWS are allowed for only as far as the rows show that such rows are rare there.
    """
    if far <= 0.0:  # nothing that an arm of no cost adds is unseen
        return math.sqrt(variance), math.sqrt(variance)
    rows = off / (len(off) * far)
    lean = float(rows @ rows**2) / max(float(rows @ rows), 1e-300)  # in units of `far`
    seldom = min(math.hypot(lean, 1.0 / math.sqrt(1.0 + 2.0 * float(rows**2 @ rows**2))), 1.0)
    near, wide = (math.sqrt(variance + (_UNSEEN_ROWS * far * one) ** 2) for one in (seldom, 1.0))
    shift = _LEAN * _UNSEEN_ROWS * far * max(min(lean, 1.0), -1.0)
    below, above = (near, wide) if lean > 0.0 else (wide, near)
    return max(below - shift, 0.0), max(above + shift, 0.0)


def _served(
    value: Vector, *, counts: Vector, arm: Choices, guess: Vector, told: Vector
) -> tuple[Vector, Vector, float]:
    """`served` of each row; the share of seen rows by arm, 1 for an arm without any; the share of rows of such arms."""
    seen = counts > 0.0
    model, whole = np.empty(len(value)), float(np.average(value[seen], weights=counts[seen]))
    share, unknown = np.ones(int(arm.max()) + 1), 0.0
    for one in np.unique(arm):
        rows = arm == one
        known = rows & seen
        if not known.any():
            model[rows], unknown = whole, unknown + float(rows.mean())
            continue
        share[one] = counts[rows].sum() / rows.sum()
        fitted = _fitted(value[rows], weight=counts[rows], predicted=guess[rows])
        begun = _BEGUN / (_BEGUN + known.sum()) * (whole - float(np.average(value[known], weights=counts[known])))
        model[rows] = fitted + begun + _centred(told[rows], weight=np.ones(int(rows.sum())))
    served = model + np.where(seen, value - model, 0.0) * counts / share[arm]
    return served, share, unknown


def _centred(told: Vector, *, weight: Vector) -> Vector:
    """What the scores add to the model of each row, shape (n,): of mean 0 over the rows with a weight, else 0."""
    known = np.where(np.isnan(told), 0.0, weight)
    return np.asarray(np.where(known > 0.0, told - np.nansum(known * told) / max(known.sum(), 1e-300), 0.0))


def _fitted(value: Vector, *, weight: Vector, predicted: Vector) -> Vector:
    """The m of every row, from those with a weight: their weighted mean, and a slope on the predictions, shape (n,)."""
    known = weight > 0.0
    w, y = weight[known], value[known]
    mean = float(w @ y / w.sum())
    flat = np.full(len(value), mean)
    x = predicted[known]
    if known.sum() < _FEWEST_OF_SLOPE or np.isnan(x).all():
        return flat
    centre = float(np.nansum(w * x) / w[~np.isnan(x)].sum())
    away = np.where(np.isnan(predicted), 0.0, predicted - centre)
    scatter = float(w @ away[known] ** 2)
    if scatter <= 0.0:
        return flat
    rows = effective_rows(float(w.sum()), squares=float((w**2).sum()))
    slope = float(w @ (away[known] * (y - mean))) / scatter * rows / (rows + _HALF_SLOPE)
    fitted: Vector = mean + slope * away
    return fitted
