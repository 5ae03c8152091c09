"""The mean difference of two ways of answering, from both answers to a random sample of the questions.

The estimate is the mean over all questions of (value of the first way - value of the second way). A value is the mean
over all answers that the arm could give to the question. A question that both ways send to the same arm has the
difference 0. A sample of the other questions is asked in a random order, which does not depend on any outcome. An
unknown difference lies between its smallest and its largest possible value.

The bounds are a confidence sequence for the mean of bounded values by betting: a mean is excluded if a bettor against
it has become rich (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting"; here a
mixture of constant bets). The bounds hold for every distribution and at every sample size, so one may look, stop, and
go on at any time. Sampling without replacement makes the expected wealth smaller (Maclaurin's inequality), so the
bounds hold for a finite period, too. Having asked most of the questions does not narrow the bounds: the arms could have
given other answers, and one answer of each must not make two equal arms look different.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ragbandit.router.comparison import Difference
from ragbandit.shared.types import Matrix, Vector

#: probability that the interval misses the true difference at any sample size
ALPHA: Final = 0.05
#: bets, as shares of the largest possible bet, and the share of the initial wealth behind each bet. Their total wealth
#: is the evidence against a mean: small bets win with thousands of questions, large bets with few
_BETS: Final = np.array([0.95, 0.5, 0.25, 0.12, 0.06, 0.03])
_MONEY: Final = np.array([0.35, 0.28, 0.19, 0.1, 0.05, 0.03])
#: largest distance of a computed bound from the exact bound
_EXACT: Final = 2.0**-30
#: parts of a forecast: the log wealth that a mixture of bets costs, and the share of half the possible range that the
#: limits of the bets cost. From 30 questions on, forecasts differ from the width by at most about a fifth
_MIXTURE: Final = 1.0
_REACH: Final = 0.7
#: a forecast assumes this standard deviation of a difference until _FEWEST differences are known
_DEVIATION, _FEWEST = 0.5, 10
_TINY: Final = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferenceSample:
    """Differences of the questions that the two ways send to different arms. A difference lies between its low and its
    high end, which are equal if it is known.
    """

    #: ends of the differences of the asked questions, in the order in which they were drawn, shape (drawn, 2)
    drawn: Matrix
    #: number of questions that can be asked, from which `drawn` was drawn
    drawn_from: int
    #: ends of the differences of the questions that cannot be asked, shape (others, 2)
    others: Matrix
    #: number of all questions, including questions that both ways send to the same arm
    routed: int
    #: smallest and largest possible difference of a question
    least: float
    most: float

    @property
    def known(self) -> Vector:
        """The known differences of asked questions."""
        low, high = self.drawn.T
        known: Vector = low[low == high]
        return known


def sampled_difference(sample: DifferenceSample) -> Difference:
    """The mean difference of a question with its interval, which is the possible range before any answer."""
    low, high = sample.drawn.T
    floor, ceiling = sample.least, sample.most
    bounds = _lower(low, floor=floor), -_lower(-high, floor=-ceiling)
    rest = map(math.fsum, sample.others.T)
    ends = [
        (sum_ + bound * sample.drawn_from) / max(sample.routed, 1) for sum_, bound in zip(rest, bounds, strict=True)
    ]
    return Difference(estimate=_estimate(sample, ends=ends), low=ends[0], high=ends[1], effective_rows=float(len(low)))


def _estimate(sample: DifferenceSample, *, ends: Sequence[float]) -> float | None:
    """The mean over routed questions if all unknown differences equal the mean known one; None if none is known."""
    known = sample.known
    if not len(known):
        return None
    mean = math.fsum(known) / len(known)
    others = math.fsum(np.clip(mean, *sample.others.T))
    return min(max((mean * sample.drawn_from + others) / sample.routed, ends[0]), ends[1])


def _lower(values: Vector, *, floor: float) -> float:
    """The lower bound of the mean. With probability 1 - ALPHA / 2, it holds at every number of values.

    values: the drawn values, in their order, shape (n,), all >= floor
    """
    if not len(values):
        return floor

    def wealth(mean: float) -> float:
        stake = _BETS[:, None] / max(mean - floor, _TINY)
        logs = np.log(np.maximum(1.0 + stake * (values - mean), _TINY)).sum(axis=1)
        return float(np.logaddexp.reduce(logs + np.log(_MONEY)))

    return _falling_root(wealth, level=-math.log(ALPHA / 2.0), low=floor, high=max(float(values.mean()), floor))


def _falling_root(function: Callable[[float], float], *, level: float, low: float, high: float) -> float:
    """The smallest point in [low, high] where a falling function is at most `level`, or a point just below it."""
    if function(low) <= level:
        return low
    steps = max(1, math.ceil(math.log2(max((high - low) / _EXACT, 2.0))))
    for _ in range(steps):
        middle = (low + high) / 2.0
        low, high = (middle, high) if function(middle) > level else (low, middle)
    return low


def expected_half_width(questions: int, *, sample: DifferenceSample) -> float:
    """About half the width of the interval after `questions` questions in all, including the questions of the sample.

    The standard deviation of the known differences is assumed to stay. With fewer than _FEWEST, it is _DEVIATION.
    """
    known = sample.known.tolist()
    deviation = statistics.stdev(known) if len(known) >= _FEWEST else _DEVIATION
    reach, share = (sample.most - sample.least) / 2.0, sample.drawn_from / max(sample.routed, 1)
    low, high = sample.others.T
    unknown = math.fsum(high - low) / 2.0 / max(sample.routed, 1)
    if questions <= 0 or not sample.drawn_from:
        return share * reach + unknown
    evidence = (math.log(2.0 / ALPHA) + _MIXTURE) / questions
    width = math.hypot(deviation * math.sqrt(2.0 * evidence), _REACH * evidence * reach)
    return share * min(width, reach) + unknown
