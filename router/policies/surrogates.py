"""Calibrates the scores of judges and events, which are biased observations of an answer's quality.

Let y be the rating of a trusted rater and g the score of a source. The answers that have both give the constants a and
c in g = a + c y + noise. For an answer without a rating, (g - a) / c is an unbiased observation of y. Let r be the
correlation of y and g. The variance of the observation is 1 / r^2 times the variance of y, so it has the weight of r^2
rows. r is computed within the answers of one arm; across arms, a source that favours one arm would seem right as soon
as this arm is good. The prior odds that the source is informative are even, and are updated by Schwarz's approximation
of the Bayes factor.

Before the first answer with both, scores count as ratings with the weight `learning.weights`, which later is an upper
limit. All rows of a source follow its current calibration, so an uninformative source has no effect.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ragbandit.shared.types import ArmName, Matrix, Vector

#: source of all ratings that count as the quality
TRUSTED: Final = "trusted"
#: prior of the correlation r: this number of virtual answers whose rating and score are uncorrelated
_PRIOR_ROWS: Final = 4.0
#: the scale is fitted again when the number of answers with rating and score has grown by this factor
_GROWTH: Final = 1.25


@dataclass(frozen=True, slots=True)
class Scale:
    """Calibration of a source: quality = (score - offset) / slope. `share`, in [0, 1], multiplies a row's weight."""

    share: float = 1.0
    slope: float = 1.0
    offset: float = 0.0

    def quality(self, score: float) -> float:
        return (score - self.offset) / self.slope


#: scale of trusted ratings, and of a source without an answer that has rating and score
PLAIN: Final = Scale()


@dataclass(slots=True)
class Surrogate:
    #: arm -> (number of answers with rating and score, sum of ratings, sum of scores)
    arms: dict[ArmName, Vector] = field(default_factory=dict)
    #: sums of the products of (rating, score) over all arms
    products: Matrix = field(default_factory=lambda: np.zeros((2, 2)))
    #: number of answers with a score and no rating
    unrated: int = 0
    mass: float = 0.0  #: total weight of the answers with a score and no rating
    scale: Scale = PLAIN
    #: number of answers with rating and score at which the scale is fitted again
    due: int = 1

    def learn(self, arm: ArmName, *, quality: float, score: float) -> bool:
        """Learn an answer with a rating (`quality`) and a score. Returns whether `scale` was fitted again."""
        row = np.array([1.0, quality, score])
        self.arms[arm] = self.arms.get(arm, np.zeros(3)) + row
        self.products = self.products + np.outer(row[1:], row[1:])
        number = int(sum(sums[0] for sums in self.arms.values()))
        if number < self.due:
            return False
        self.due = max(number + 1, math.ceil(_GROWTH * number))
        self.scale = self._fit()
        return True

    def _fit(self) -> Scale:
        usual = min(self.mass / self.unrated, 1.0) if self.unrated else 1.0
        if usual <= 0.0:
            return PLAIN
        sums = np.array(list(self.arms.values()))
        number, means = sums[:, 0], sums[:, 1:] / sums[:, :1]
        scatter = _PRIOR_ROWS * 0.25 * np.eye(2) + self.products - (means * number[:, None]).T @ means
        free = number.sum() - len(number)
        if scatter[0, 1] <= 0.0:
            return Scale(share=0.0)
        slope, r_squared = scatter[0, 1] / scatter[0, 0], scatter[0, 1] ** 2 / (scatter[0, 0] * scatter[1, 1])
        p_informative = 1.0 / (1.0 + math.sqrt(free) * max(1.0 - r_squared, 0.0) ** (0.5 * free))
        mean = sums[:, 1:].sum(axis=0) / number.sum()
        share = min(float(p_informative * r_squared) / usual, 1.0)
        return Scale(share, float(slope), float(mean[1] - slope * mean[0]))

    def state(self) -> list[Any]:
        scale = [self.scale.share, self.scale.slope, self.scale.offset, self.due]
        arms = {arm: sums.tolist() for arm, sums in self.arms.items()}
        return [arms, self.products.ravel().tolist(), self.unrated, self.mass, *scale]

    @classmethod
    def from_state(cls, state: list[Any]) -> "Surrogate":
        arms, products, alone, mass, share, slope, offset, due = state
        sums = {arm: np.array(values) for arm, values in arms.items()}
        return cls(sums, np.array(products).reshape(2, 2), alone, mass, Scale(share, slope, offset), due)
