"""What a log says of "always one arm" against what was served: one value per question, with its interval.

Row i offered arms b with probabilities p_b, drew arm a, and has a value y (dollars, steps, quality), seen or not:

    e_b       the share of arm b's rows whose value is seen
    m_b       mean of y over the seen rows of arm b, plus a slope times the policy's own prediction less its mean
    served    m_a + [seen] (y - m_a) / e_a
    always x  m_x + [a = x, seen] (y - m_x) / (e_x p_x)          here m_x is fitted with weights 1 / p_x

The means of both are what was spent, or would have been, per question; where every value is seen, `served` is the plain
mean. `always x` is the self-normalised estimate (Hajek 1971) with the predictions as control variates, a generalised
regression estimator (Cassel, Sarndal and Wretman 1976); e_b corrects that answers of one arm are rated more often than
those of another, as long as among the answers of an arm it does not hang on how good they are.

The interval is the asymptotic confidence sequence (`asymptotic_width`) of the mean of served - always x, counted in
effective rows; it holds however often one looks. A log may not have shown the heaviest row yet: for some of them the
variance is raised, as in replay's intervals.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.confidence_sequences import asymptotic_width
from ragbandit.shared.evidence import Tried
from ragbandit.shared.types import Matrix, Vector
from ragbandit.shared.types.ledger import effective_rows

Choices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

#: false alarms of an interval that is looked at again and again, and the effective rows at which it is narrowest
ALPHA: Final = 0.05
_NARROWEST_AT: Final = 200
#: rows of the heaviest weight and the farthest value that the interval allows for (python -m benchmarks.report)
_UNSEEN_ROWS: Final = 1.5
#: rows of the mean of all that the mean of an arm is begun with
_BEGUN: Final = 2.0
#: a slope is fitted from so many seen rows on, and halved where there are as many effective ones
_FEWEST_OF_SLOPE: Final = 20
_HALF_SLOPE: Final = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What was served against always one arm, per question."""

    questions: int
    tried: Tried
    #: mean of what was served; None: no value is seen
    served: float | None = None
    #: the same had always the arm been used; None, with all below, where it is not tried enough
    always: float | None = None
    #: served - always, and its 95 % interval
    difference: float | None = None
    low: float | None = None
    high: float | None = None


def compared(
    value: Vector, *, arm: Choices, pmf: Matrix, predicted: Matrix, against: int, least: float, most: float
) -> Comparison:
    """The comparison with always the arm `against`, in the unit of the values.

    value: shape (n,), NaN where it is not seen. arm: the one drawn. pmf: shape (n, K), above 0 for `against` in every
    row. predicted: what the policy expected of each arm before the draw, shape (n, K), NaN where it said nothing.
    least, most: between which a value may lie.
    """
    n, seen, mine = len(value), ~np.isnan(value), arm == against
    drawn = mine & seen
    tried = Tried(draws=int(mine.sum()), judged=int(drawn.sum()), effective=0.0, questions=n)
    if not seen.any():
        return Comparison(questions=n, tried=tried)
    served, share, unknown = _served(value, seen=seen, arm=arm, predicted=predicted[np.arange(n), arm])
    if not drawn.any():
        return Comparison(questions=n, tried=tried, served=float(served.mean()))
    inverse = 1.0 / pmf[:, against]
    weight = np.where(drawn, inverse, 0.0)
    effective = min(
        effective_rows(float(weight.sum()), squares=float((weight**2).sum())),
        # By the probabilities alone, those of questions that hardly ever draw the arm among them.
        share[against] * effective_rows(float(n), squares=float(inverse.sum())),
        effective_rows(float((seen / share[arm]).sum()), squares=float((seen / share[arm] ** 2).sum())),
    )
    tried = Tried(draws=tried.draws, judged=tried.judged, effective=effective, questions=n)
    if not tried.enough:
        return Comparison(questions=n, tried=tried, served=float(served.mean()))
    model = _fitted(value, weight=weight, predicted=predicted[:, against])
    always = model + np.where(drawn, value - model, 0.0) * weight * (n / weight.sum())
    difference = served - always
    variance = float(difference.var(ddof=1)) / n * effective / (effective - 2.0)
    # Mean w^3 over mean w^2, by the probabilities (`heavy_weight` in offline/estimation/intervals.py).
    heavy = float((inverse**2).sum() / inverse.sum()) / share[against]
    heavy = max(heavy, 0.0 if seen.all() else float(1.0 / share[arm[seen]].min()))
    unseen = _UNSEEN_ROWS * heavy * (most - least) / n
    width = float(asymptotic_width(np.array([effective]), alpha=ALPHA, tightest_at=_NARROWEST_AT, sides=2)[0])
    half = width * math.sqrt((variance + unseen * unseen) * effective) + unknown * (most - least)
    middle = float(difference.mean())
    return Comparison(
        questions=n,
        tried=tried,
        served=float(served.mean()),
        always=float(always.mean()),
        difference=middle,
        low=middle - half,
        high=middle + half,
    )


def _served(value: Vector, *, seen: Flags, arm: Choices, predicted: Vector) -> tuple[Vector, Vector, float]:
    """`served` of each row; the share of seen rows by arm, 1 for an arm without any; the share of rows of such arms."""
    model, whole = np.empty(len(value)), float(value[seen].mean())
    share, unknown = np.ones(int(arm.max()) + 1), 0.0
    for one in np.unique(arm):
        rows = arm == one
        known = rows & seen
        if not known.any():
            model[rows], unknown = whole, unknown + float(rows.mean())
            continue
        share[one] = known.sum() / rows.sum()
        fitted = _fitted(value[rows], weight=seen[rows].astype(np.float64), predicted=predicted[rows])
        begun = _BEGUN / (_BEGUN + known.sum()) * (whole - float(value[known].mean()))
        model[rows] = fitted + begun
    served = model + np.where(seen, value - model, 0.0) / share[arm]
    return served, share, unknown


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
