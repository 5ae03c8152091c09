"""Calibrates the scores of judges and events, which are biased observations of the quality; one surrogate per source.

y is the rating of a trusted rater, g the score of the source, and g = a + c y + e on the decisions with both. Without a
rating, (g - a) / c is an unbiased observation of y. Its variance is 1 / r^2 times the variance of y, so it has the
weight of r^2 rows. r is the correlation of y and g within the answers of one arm, because across arms a source that
favours one arm would look right as soon as that arm is good. The prior odds that the source is informative are even,
and updated by Schwarz's approximation of the Bayes factor.

Until the first decision with both, scores are used as they are, with the weight of the setting `learning.weights`,
which is also the upper bound afterwards. Sums are stored per source, so all rows of a source follow its current
calibration: an uninformative source has no effect.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ragbandit.shared.types import ArmName, Matrix, Vector

#: names of the sources in the ledger
SURROGATES: Final = ("judge", "event")
#: source of all ratings that are used as the quality
TRUSTED: Final = "trusted"
#: prior of the correlation: number of virtual decisions with both that are uncorrelated
_PRIOR_ROWS: Final = 4.0
#: the scale is fitted again, and all heads are solved, when the number of decisions with both has grown by this factor
_GROWTH: Final = 1.25


@dataclass(frozen=True, slots=True)
class Scale:
    """Calibration of a source: quality = (score - offset) / slope. `share`, in [0, 1], multiplies the row's weight."""

    share: float = 1.0
    slope: float = 1.0
    offset: float = 0.0

    def quality(self, score: float) -> float:
        """The score in units of trusted ratings."""
        return (score - self.offset) / self.slope


#: scale of trusted ratings, and of every source before the first decision with both
PLAIN: Final = Scale()


@dataclass(slots=True)
class Surrogate:
    """Calibration state of one source of scores."""

    #: arm -> (number of decisions with both, sum of y, sum of g)
    arms: dict[ArmName, Vector] = field(default_factory=dict)
    #: sums of the products of (y, g) over all arms
    products: Matrix = field(default_factory=lambda: np.zeros((2, 2)))
    #: rows judged by this source only, and their total weight
    alone: int = 0
    mass: float = 0.0
    #: current scale, and the number of decisions with both at which it is fitted again
    scale: Scale = PLAIN
    due: int = 1

    def learn(self, arm: ArmName, *, quality: float, score: float) -> bool:
        """Learn a decision that has a trusted rating (`quality`) and a score. Returns whether the scale was fitted."""
        row = np.array([1.0, quality, score])
        self.arms[arm] = self.arms.get(arm, np.zeros(3)) + row
        self.products = self.products + np.outer(row[1:], row[1:])
        number = int(sum(sums[0] for sums in self.arms.values()))
        if number < self.due:
            return False
        self.due = max(number + 1, math.ceil(_GROWTH * number))
        self.scale = self._fitted()
        return True

    def _fitted(self) -> Scale:
        """Fit the scale on all decisions with both; its share is 0 unless the correlation is positive."""
        usual = min(self.mass / self.alone, 1.0) if self.alone else 1.0
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
        """The state as JSON values."""
        scale = [self.scale.share, self.scale.slope, self.scale.offset, self.due]
        arms = {arm: sums.tolist() for arm, sums in self.arms.items()}
        return [arms, self.products.ravel().tolist(), self.alone, self.mass, *scale]

    @classmethod
    def restored(cls, state: list[Any]) -> "Surrogate":
        """The surrogate with a saved state."""
        arms, products, alone, mass, share, slope, offset, due = state
        sums = {arm: np.array(values) for arm, values in arms.items()}
        return cls(sums, np.array(products).reshape(2, 2), alone, mass, Scale(share, slope, offset), due)
