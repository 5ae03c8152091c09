"""The noise of rewards: the covariance S of (quality, cost) around their means.

All arms have one covariance, because single arms often have too few rows. A row with weight w, design row z and
prediction errors e of (quality, cost) adds w e e^T / (1 + w z^T A^-1 z) to the sums from which S is estimated, with the
precision A of the posterior (posterior.py; Bishop, Pattern Recognition and Machine Learning, section 3.3).
"""

import math
from typing import Final

#: prior variance of quality, with the weight of one row: the largest variance of values in [0, 1]. Cost has no prior
#: variance, because its unit is unknown
_FIRST_QUALITY: Final = 0.25
_MOST_LOST: Final = 0.5
#: lower limit of the standard deviation of a prediction, in units of reward
LEAST_NOISE: Final = 1e-6


class Noise:
    def __init__(self, *, memory: float | None) -> None:
        self.memory = memory
        #: sums over rows of (quality error)^2, quality error * cost error, and (cost error)^2; old rows fade
        self.scatter: tuple[float, float, float] = 0.0, 0.0, 0.0
        self.rows = 0.0  #: total weight of the rows in `scatter`

    def at(self, weight: float) -> float:
        """Standard deviation of quality - weight * cost around its mean, in units of reward, >= 0."""
        quality, mixed, cost = self.scatter
        rows = 1.0 + self.rows
        variance = (_FIRST_QUALITY + quality) / rows - 2.0 * weight * (mixed / rows) + weight * weight * (cost / rows)
        return math.sqrt(max(variance, 0.0))

    def learn(self, errors: tuple[float, float], *, weight: float, rows: float, leverage: float) -> tuple[float, float]:
        """Learn a row's prediction errors. Returns the error of its reward (in reward, in standard deviations).

        errors: errors of quality and cost. rows: weight of the row. Below 1, the quality has 1 / rows times the usual
            variance. leverage: z^T A^-1 z
        """
        if rows == 0.0:
            return 0.0, 0.0
        expected = self.at(weight) * math.sqrt((1.0 + rows * leverage) / rows)
        quality, cost = errors
        value = quality - weight * cost
        quality *= min(math.sqrt(rows), 1.0)
        fade = 1.0 if self.memory is None else 1.0 - min(rows / self.memory, _MOST_LOST)
        scaled, (old_quality, old_mixed, old_cost) = 1.0 + rows * leverage, self.scatter
        self.scatter = (
            fade * old_quality + rows * (quality * quality) / scaled,
            fade * old_mixed + rows * (quality * cost) / scaled,
            fade * old_cost + rows * (cost * cost) / scaled,
        )
        self.rows = fade * self.rows + rows
        return value, value / max(expected, LEAST_NOISE)
