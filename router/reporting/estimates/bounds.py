"""Intervals from possible values of the compared arm's answers, which need no ratings (docs/estimates.md, step 8)."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ragbandit.router.comparison import MARGIN
from ragbandit.router.reporting.estimates.mean_intervals import Interval, MeanInterval
from ragbandit.router.reporting.estimates.served import Served
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.types import Matrix, Vector

#: probability that the interval misses the true difference at any look while the log grows
ALPHA: Final = 0.05
#: shares of ALPHA for the interval from controls, for the low end from the best possible values, and for the high end
#: from the worst possible values. The low end decides most verdicts, the high end hardly any
ERROR_OF_CONTROLS: Final = 0.4
ERROR_OF_BEST: Final = 0.5
ERROR_OF_WORST: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Possible:
    """Possible values of each answer if its quality is unknown and its cost is known."""

    best: Vector | float  #: shape (n,), NaN without an outcome; a number if it is the same for every answer of any arm
    worst: Vector | float
    least: float  #: smallest value of any answer
    most: float  #: largest value of any answer
    #: predicted costs of all arms before the draw, shape (n, K), from which `best` and `worst` are predicted; None if
    #: `best` and `worst` are numbers
    cost: Matrix | None = None


def control_intervals(
    served: Served, elsewhere: Vector, *, possible: Possible | None
) -> tuple[MeanInterval, MeanInterval]:
    """Two intervals from the values of controls: of the first the low end is used, of the second the high end.

    elsewhere: scores of the arm's answers
    """

    def interval(scores: Vector) -> MeanInterval:
        alpha = ALPHA if possible is None else ALPHA * ERROR_OF_CONTROLS
        lowest = None if possible is None else possible.worst
        return served.difference_interval(scores, draws=served.draws, alpha=alpha, least=lowest)

    if possible is None or not served.is_bounded.any():
        ends = interval(elsewhere)
        return ends, ends
    most, least = (np.where(served.is_bounded, bound, elsewhere) for bound in (possible.most, possible.least))
    return interval(most), interval(least)


def best_interval(served: Served, possible: Possible) -> MeanInterval | None:
    """The interval if the arm's answers had their best possible values, which gives the low end."""
    return _possible_interval(
        served, possible.best, bound=possible.most, error=ALPHA * ERROR_OF_BEST, possible=possible
    )


def worst_interval(served: Served, possible: Possible) -> MeanInterval | None:
    """The interval if the arm's answers had their worst possible values, which gives the high end."""
    return _possible_interval(
        served, possible.worst, bound=possible.least, error=ALPHA * ERROR_OF_WORST, possible=possible
    )


def _possible_interval(
    served: Served, values: Vector | float, *, bound: float, error: float, possible: Possible
) -> MeanInterval | None:
    """The interval if the arm's answers had these values; one of its ends is used. None if there are too few rows.

    bound: value of the arm if it could not be drawn. error: probability that the used end is wrong
    """
    draws = None
    if not isinstance(values, float) and served.away.any():
        predicted = served.draws.predicted if possible.cost is None else possible.cost
        draws = served.draws.of_values(values, predicted=predicted)
    controls = math.inf if draws is None else served.effective_controls(draws)
    if not min(served.effective_rated(), controls) >= FEWEST_EFFECTIVE:
        return None
    other = np.where(served.is_other, bound if draws is None and not isinstance(values, float) else values, 0.0)
    if draws is not None:
        other = np.where(served.is_bounded, bound, draws.elsewhere(served.place, away=served.away))
    return served.difference_interval(other, draws=draws, alpha=2.0 * error, least=possible.worst)


def within_the_range(served: Served, ends: Interval, *, possible: Possible) -> Interval:
    """The ends, moved to at most the share of differing questions x the range of values from 0."""
    low, high = ends
    # Only questions that another arm answers, or would have answered, differ.
    share = max(float(served.is_other.mean()), 1.0 - float(served.draws.pmf[:, served.place].mean()))
    farthest = share * (possible.most - possible.least)
    if low > -math.inf or farthest <= MARGIN:
        low = max(low, -farthest)
    if high < math.inf or farthest <= MARGIN:
        high = min(high, farthest)
    return low, high
