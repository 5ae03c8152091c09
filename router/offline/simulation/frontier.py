"""Quality against cost: policies, mixtures of two arms at the same cost, and oracles.

Everything here is arithmetic on a full-information table. `correct` and `steps` have shape (n, arms); a policy's word
on the same n questions is `shares` (n, arms), each row a distribution: one-hot where it takes the best arm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ragbandit.router.offline.simulation.table import LabelledTable
from ragbandit.router.offline.types import Choices, Matrix
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName

#: mean steps at which frontiers are compared
STEPS_READ = (1.3, 1.5, 1.85, 2.2, 2.8)
#: weights of cost tried on a learner that keeps quality and cost apart: dense where the papers' costs turn the choice
SWEEP: tuple[float, ...] = (
    -0.1,
    -0.05,
    -0.02,
    -0.01,
    *(round(0.00125 * number, 5) for number in range(81)),
    *(round(0.1 + number / 90, 5) for number in range(1, 37)),
)
#: the arms of the papers' line, where a table has them
_PAPERS = (ArmName("single_step"), ArmName("multi_step"))


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """Point of a policy: exact match in percent, mean steps per question of the table."""

    em: float
    steps: float


class HasPoint(Protocol):
    """What stands somewhere: a point, a row of results, a step of a frontier."""

    @property
    def em(self) -> float:
        """Exact match, percent."""

    @property
    def steps(self) -> float:
        """Mean steps per question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureLine:
    """The line between two fixed arms: every point on it is reached by drawing between them."""

    cheap: FrontierPoint
    dear: FrontierPoint
    arms: tuple[ArmName, ArmName]

    def at(self, steps: float) -> float:
        """EM of the mixture at these mean steps; the same straight line outside of the two arms.

        Where both cost the same there is no mixing for cost: the better of the two.
        """
        width = self.dear.steps - self.cheap.steps
        if width == 0.0:
            return max(self.cheap.em, self.dear.em)
        return self.cheap.em + (steps - self.cheap.steps) / width * (self.dear.em - self.cheap.em)

    def above(self, point: HasPoint) -> float:
        """EM of the point minus the line's at the same steps."""
        return point.em - self.at(point.steps)


def point_of(shares: Matrix, *, table: LabelledTable, total: int) -> FrontierPoint:
    """EM = 100 * expected sum of correct / total; steps = expected mean over the rows of the table.

    total: questions in the denominator of EM, at least the table's. Those missing from the table are wrong under
    every arm; nobody knows their steps.
    """
    em = 100.0 * float((shares * table.correct).sum()) / total
    return FrontierPoint(em=em, steps=float((shares * table.steps).sum()) / len(table.rows))


def line_of(table: LabelledTable, *, total: int, arms: tuple[str, str] | None = None) -> MixtureLine:
    """The line between two arms: the given ones, else single_step and multi_step, else the cheapest and the dearest.

    Raises InvalidInput for arms that the table has not.
    """
    means = table.steps.mean(axis=0)
    if arms is not None:
        for name in arms:
            if name not in table.arms:
                raise InvalidInput(f"unknown arm {name!r}", field="line", remedy=f"use two of {', '.join(table.arms)}")
        between = table.arms.index(ArmName(arms[0])), table.arms.index(ArmName(arms[1]))
    elif all(name in table.arms for name in _PAPERS):
        between = table.arms.index(_PAPERS[0]), table.arms.index(_PAPERS[1])
    else:
        between = int(means.argmin()), len(means) - 1 - int(means[::-1].argmax())
    always = [
        point_of(one_hot(np.full(len(table.rows), k), arms=len(means)), table=table, total=total) for k in between
    ]
    return MixtureLine(cheap=always[0], dear=always[1], arms=(table.arms[between[0]], table.arms[between[1]]))


def one_hot(choices: Choices, *, arms: int) -> Matrix:
    """The chosen arm of each of n questions as shares, shape (n, arms)."""
    return np.eye(arms, dtype=np.float64)[choices]


def greedy(values: Matrix, *, cost: Matrix) -> Choices:
    """The arm of the highest value per row, shape (n,); of equal values the cheaper arm, then the first."""
    best = values == values.max(axis=1, keepdims=True)
    choices: Choices = np.where(best, cost, np.inf).argmin(axis=1)
    return choices


def cheapest_right(table: LabelledTable) -> Choices:
    """The oracle of the papers: the cheapest of the arms that answer best; where none is right, the cheapest arm."""
    return greedy(table.correct, cost=table.steps)


def rewards_of(table: LabelledTable, *, weight: float, price: float, bounds: tuple[float, float]) -> Matrix:
    """Reward of every arm, shape (n, arms): clip(correct - weight * price * steps), as router.learning.reward makes
    it.
    """
    return np.clip(table.correct - weight * (price * table.steps), *bounds)


def interpolated(points: Sequence[FrontierPoint], *, steps: float) -> float | None:
    """EM along the frontier through these points at given steps; None outside of them.

    Points of equal steps count as one, with their mean EM.
    """
    if not points:
        return None
    # Equal up to rounding: the same choices summed in another order are the same point.
    _, group = np.unique(np.array([round(point.steps, 9) for point in points]), return_inverse=True)
    count = np.bincount(group)
    em = np.bincount(group, weights=[point.em for point in points]) / count
    at = np.bincount(group, weights=[point.steps for point in points]) / count
    if not at[0] - 1e-9 <= steps <= at[-1] + 1e-9:
        return None
    return float(np.interp(steps, at, em))


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error over seeds; of one seed there is no error to tell."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, float(np.std(values, ddof=1)) / math.sqrt(len(values))
