"""Scores of judges and events as biased observations of the quality, one surrogate per source.

y is what a trusted rater says of an answer, g the score of the source, and g = a + c y + e on the decisions with both.
Where nobody else judged, (g - a) / c is then an unbiased observation of y. Its variance is 1 / r^2 times that of y, so
it counts as r^2 rows; r is the correlation of y and g among the answers of one arm. (Among those of all arms a source
that praises one arm would look right as soon as that arm is good.) That it tells anything has even odds before the
first decision with both, and Schwarz's approximation of the Bayes factor afterwards.

Until the first decision with both, a score is taken for what it says, and counts as its row says: the setting
`learning.weights`. That is the most that it counts as afterwards. The sums of a source are kept apart, so that all its
rows count by what is known now: a source that tells nothing leaves nothing behind.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ragbandit.shared.types import ArmName, Matrix, Vector

#: the sources, as rows of the ledger name them
SURROGATES: Final = ("judge", "event")
#: all raters whose word is taken for the quality
TRUSTED: Final = "trusted"
#: decisions with both, of no correlation, that a correlation begins with
_PRIOR_ROWS: Final = 4.0
#: the scale changes whenever there are so many times as many decisions with both: all heads are solved again then
_GROWTH: Final = 1.25


@dataclass(frozen=True, slots=True)
class Scale:
    """How scores become qualities: (score - offset) / slope, counting `share` of what the row says, in [0, 1]."""

    share: float = 1.0
    slope: float = 1.0
    offset: float = 0.0

    def quality(self, score: float) -> float:
        """What a score says in the trusted raters' units."""
        return (score - self.offset) / self.slope


#: of trusted raters, and of every source before the first decision with both
PLAIN: Final = Scale()


@dataclass(slots=True)
class Surrogate:
    """What is known of one source."""

    #: by arm: decisions with both, and the sums of (y, g); of all arms together the sums of their products
    arms: dict[ArmName, Vector] = field(default_factory=dict)
    products: Matrix = field(default_factory=lambda: np.zeros((2, 2)))
    #: rows of it alone, and what they count as
    alone: int = 0
    mass: float = 0.0
    #: in force, and the number of decisions with both at which it changes
    scale: Scale = PLAIN
    due: int = 1

    def learn(self, arm: ArmName, *, quality: float, score: float) -> bool:
        """Take in a decision with both; whether the scale has changed."""
        row = np.array([1.0, quality, score])
        self.arms[arm] = self.arms.get(arm, np.zeros(3)) + row
        self.products = self.products + np.outer(row[1:], row[1:])
        number = int(sum(one[0] for one in self.arms.values()))
        if number < self.due:
            return False
        self.due = max(number + 1, math.ceil(_GROWTH * number))
        self.scale = self._fitted()
        return True

    def _fitted(self) -> Scale:
        """The scale of all decisions with both; no weight where the correlation is not above 0."""
        usual = min(self.mass / self.alone, 1.0) if self.alone else 1.0
        if usual <= 0.0:
            return PLAIN
        sums = np.array(list(self.arms.values()))
        number, means = sums[:, 0], sums[:, 1:] / sums[:, :1]
        scatter = _PRIOR_ROWS * 0.25 * np.eye(2) + self.products - (means * number[:, None]).T @ means
        free = number.sum() - len(number)
        if scatter[0, 1] <= 0.0:
            return Scale(share=0.0)
        slope, told = scatter[0, 1] / scatter[0, 0], scatter[0, 1] ** 2 / (scatter[0, 0] * scatter[1, 1])
        tells = 1.0 / (1.0 + math.sqrt(free) * max(1.0 - told, 0.0) ** (0.5 * free))
        mean = sums[:, 1:].sum(axis=0) / number.sum()
        return Scale(min(float(tells * told) / usual, 1.0), float(slope), float(mean[1] - slope * mean[0]))

    def state(self) -> list[Any]:
        """Its numbers."""
        scale = [self.scale.share, self.scale.slope, self.scale.offset, self.due]
        arms = {arm: sums.tolist() for arm, sums in self.arms.items()}
        return [arms, self.products.ravel().tolist(), self.alone, self.mass, *scale]

    @classmethod
    def restored(cls, state: list[Any]) -> "Surrogate":
        """Of a saved state."""
        arms, products, alone, mass, share, slope, offset, due = state
        sums = {arm: np.array(one) for arm, one in arms.items()}
        return cls(sums, np.array(products).reshape(2, 2), alone, mass, Scale(share, slope, offset), due)
