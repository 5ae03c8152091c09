"""Confidence sequences: bounds that hold simultaneously after every row, so one may look and stop at any time.

Reports and rollouts, which are looked at while their log grows, all use `asymptotic_width`. This width is valid in the
limit of many rows; its callers allow for rare rows that were not drawn yet (docs/estimates.md). `SampleSize` decides
whether a log has enough rows for an interval.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ragbandit.shared.texts.formats import counted, rough_count
from ragbandit.shared.types import Indices, Matrix, Vector


def doubly_robust(
    weight: Vector, *, share: Matrix, arm: Indices, value: Vector, guess: Matrix
) -> tuple[Vector, Vector]:
    """The two terms of the doubly robust scores e_a (value - M_a) + sum_k D_k M_k, whose mean estimates sum_k D_k E_k.

    E_k is the expected value of arm k, a the drawn arm. Replay, reports and rollouts compute their scores here.

    weight: e_a = D_a / (probability that the value of a is seen), shape (n,); 0 if the row's value does not count
    share: D, a policy's pmf, or its part that is to be estimated, shape (n, K)
    value: shape (n,); may be NaN if the weight is 0
    guess: M, predicted values, from other rows or from a model with few parameters, shape (n, K)
    """
    drawn = np.arange(len(arm)) * guess.shape[1] + arm
    correction = np.where(weight == 0.0, 0.0, weight * (value - np.take(guess, drawn)))
    return correction, np.einsum("nk,nk->n", share, guess)


def asymptotic_width(rows: float, *, alpha: float, tightest_at: float) -> float:
    """Half-width of the asymptotic confidence sequence after `rows` scores with standard deviation 1.

    Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform central limit theory and asymptotic confidence
    sequences": equation 9 of version 1.

    tightest_at: number of rows for which the sequence is tightest
    """
    rho2 = (-2.0 * math.log(alpha) + math.log(1.0 - 2.0 * math.log(alpha))) / tightest_at
    spread = rows * rho2 + 1.0
    return math.sqrt(2.0 * spread / (rows**2 * rho2) * math.log(math.sqrt(spread) / alpha))


#: smallest number of effective rows for an interval and a verdict. Coverage was measured from this number on
#: (`python -m benchmarks.coverage`)
FEWEST_EFFECTIVE: Final = 10
#: smallest number of answers with both a rating and a judge's score from which only people's ratings count
FEWEST_BOTH: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSize:
    """Number of rows for one comparison in a log."""

    #: decisions that drew the compared arm or policy
    draws: int
    #: draws with a reward
    judged: int
    #: effective sample size, (sum of weights)^2 / sum of squared weights
    effective: float
    questions: int

    @property
    def enough(self) -> bool:
        """Whether an interval may be printed."""
        return self.effective >= FEWEST_EFFECTIVE  # False for NaN

    @property
    def missing(self) -> str | None:
        """Why no interval is printed; None if there is enough data."""
        if self.enough:
            return None
        effective = math.floor(10.0 * self.effective) / 10.0 if self.effective > 0.0 else 0.0  # 0 for NaN
        counts = f"{counted(self.draws, 'draw')}, {self.judged:,} rated, {effective:g} effective rows"
        return f"not tried enough: {counts} of {FEWEST_EFFECTIVE} needed; {self._forecast}"

    @property
    def _forecast(self) -> str:
        lacking = FEWEST_EFFECTIVE - self.effective
        if not 0.0 < lacking <= 1000 * self.effective:
            return "at this rate it will not be known"
        more = rough_count(lacking * self.questions / self.effective)
        return f"{more} more {'question' if more == 'about 1' else 'questions'} at this rate"
