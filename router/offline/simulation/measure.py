"""Arithmetic on a full-information table: points of quality and cost, the mixture line, oracles, and the first pass.

`correct` and `steps` of a table have shape (n, arms); a policy's output on the same n questions is `shares` (n, arms),
each row a distribution: one-hot where it takes the best arm.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.offline.types import Choices, Matrix, Vector
from ragbandit.shared.types import ArmName

if TYPE_CHECKING:
    from ragbandit.router.offline.simulation.run import Played

#: shortest prefix of a pass that a worst one is looked for in, questions: of fewer, one wrong answer moves the ratio
LEAST_PREFIX: Final = 100
#: the arms of the papers' line, where a table has them
_PAPERS: Final = (ArmName("single_step"), ArmName("multi_step"))


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """Point of a policy: exact match in percent, mean steps per question of the table."""

    em: float
    steps: float


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

    def above(self, point: FrontierPoint) -> float:
        """EM of the point minus the line's at the same steps."""
        return point.em - self.at(point.steps)


def point_of(shares: Matrix, *, table: LabelledTable, total: int) -> FrontierPoint:
    """EM = 100 * expected sum of correct / total; steps = expected mean over the rows of the table.

    total: questions in the denominator of EM, at least the table's. Those missing from the table are wrong under
    every arm; nobody knows their steps.
    """
    em = 100.0 * float((shares * table.correct).sum()) / total
    return FrontierPoint(em=em, steps=float((shares * table.steps).sum()) / len(table.rows))


def line_of(table: LabelledTable, *, total: int) -> MixtureLine:
    """The line between single_step and multi_step; without these between the cheapest and the most expensive arm."""
    means = table.steps.mean(axis=0)
    if all(name in table.arms for name in _PAPERS):
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


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error over seeds; of one seed there is no error to tell."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, float(np.std(values, ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstPass:
    """What a policy earned while it learned, over all its passes, against always one arm. Means per question."""

    incumbent: ArmName
    #: the arm that earns most if it is always taken
    best_fixed: ArmName
    reward: float
    #: over seeds; None with one
    reward_se: float | None
    #: what always one arm, and the best arm of every question, earn on the same questions
    always: Mapping[ArmName, float]
    oracle: float
    #: runs, and questions of the shortest one
    passes: int
    questions: int
    #: decisions whose outcome was learned, mean over the passes
    labels: float
    #: the question from which on the sum of rewards is never again below the incumbent's, in the middle pass; None
    #: where fewer than half of the passes get there; and the share that does
    break_even: int | None
    break_even_share: float
    #: least sum of rewards over the incumbent's, of the first LEAST_PREFIX questions or more of any pass, and how many
    #: these were; None where the incumbent's is not above 0
    worst_prefix: float | None
    worst_after: int | None
    #: share of passes with a prefix below (1 - harm) times the incumbent's
    harmed: float


def first_pass(
    seeds: "Sequence[Sequence[Played]]", *, arms: Sequence[ArmName], rewards: Matrix, incumbent: str | None, harm: float
) -> FirstPass:
    """The passes of one policy, a sequence of runs per seed.

    rewards: of every row and arm of the table that was learned, (n, arms). incumbent: the arm to compare with; None:
    the one of the highest mean reward, the first of equal ones.
    """
    runs = [run for folds in seeds for run in folds]
    known = [rewards[run.order] for run in runs]  # a pass each: (questions, arms)
    column = int(rewards.mean(axis=0).argmax()) if incumbent is None else list(arms).index(ArmName(incumbent))
    always = {arm: _mean([one[:, place] for one in known]) for place, arm in enumerate(arms)}
    sums = [(np.cumsum(run.earned), np.cumsum(one[:, column])) for run, one in zip(runs, known, strict=True)]
    even = sorted(one for one in (_passed_for_good(ours - theirs) for ours, theirs in sums) if one is not None)
    middle = (len(runs) + 1) // 2  # the lower of two in the middle
    prefixes = [_worst(ours, theirs) for ours, theirs in sums]
    worst = min((one for one in prefixes if one is not None), default=None) if None not in prefixes else None
    reward, reward_se = mean_and_error([_mean([run.earned for run in folds]) for folds in seeds])
    return FirstPass(
        incumbent=arms[column],
        best_fixed=max(arms, key=lambda arm: always[arm]),
        reward=reward,
        reward_se=reward_se,
        always=always,
        oracle=_mean([one.max(axis=1) for one in known]),
        passes=len(runs),
        questions=min(len(run.order) for run in runs),
        labels=math.fsum(run.labels for run in runs) / len(runs),
        break_even=even[middle - 1] if len(even) >= middle else None,
        break_even_share=len(even) / len(runs),
        worst_prefix=None if worst is None else worst[0],
        worst_after=None if worst is None else worst[1],
        harmed=sum(_harmed(ours, theirs, harm=harm) for ours, theirs in sums) / len(runs),
    )


def _mean(parts: Sequence[Vector]) -> float:
    return math.fsum(float(v) for part in parts for v in part) / max(1, sum(map(len, parts)))


def _passed_for_good(ahead: Vector) -> int | None:
    """The first question, from 1, from which on no sum is below 0; None where the last one is."""
    below = np.flatnonzero(ahead < -1e-9)  # the sums of the same rewards in another order are equal
    first = int(below[-1]) + 2 if len(below) else 1
    return first if first <= len(ahead) else None


def _prefixes(sums: Vector) -> Vector:
    return sums[min(LEAST_PREFIX, len(sums)) - 1 :]


def _worst(ours: Vector, theirs: Vector) -> tuple[float, int] | None:
    """(least ratio, after how many questions) of the prefixes of a pass."""
    if not (_prefixes(theirs) > 0.0).all():
        return None
    ratios = _prefixes(ours) / _prefixes(theirs)
    return float(ratios.min()), int(ratios.argmin()) + min(LEAST_PREFIX, len(ours))


def _harmed(ours: Vector, theirs: Vector, *, harm: float) -> bool:
    return float((_prefixes(ours) - (1.0 - harm) * _prefixes(theirs)).min()) < -1e-9
