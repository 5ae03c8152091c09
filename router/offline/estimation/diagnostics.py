"""Diagnostics of a log: importance weights, unsupported arms, draws that do not fit the pmf.

Tallies take a log in pieces. Both checks are exact: given the contexts, the variance of a weight and of a draw follows
from the logged pmfs, and Bernstein's inequality for martingales (Freedman 1975) needs no more than that and the
largest possible value. So a log that is right fails them less often than asked, however skewed its weights.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.types import Matrix, Vector
from ragbandit.shared.types import effective_rows, surely_effective_rows

#: chance that a right log is called wrong, over all checks of a replay together
ALPHA = 1e-3


def deviation(variance: float, *, largest: float, alpha: float) -> float:
    """T with P(|sum of deviations| >= t) <= alpha.

    variance: sum of the conditional variances; largest: no single deviation is larger. Freedman's inequality, both
    sides: 2 exp(-t^2 / (2 variance + 2 largest t / 3)) = alpha.
    """
    log = math.log(2.0 / alpha)
    third = largest * log / 3.0
    return third + math.sqrt(third * third + 2.0 * variance * log)


def ratios(candidate: Matrix, *, logged: Matrix) -> Matrix:
    """Candidate / logged for every arm, shape (n, K); 0 where the logger had no probability."""
    return np.divide(candidate, logged, out=np.zeros_like(candidate), where=logged > 0.0)


def _no_sums() -> Vector:
    return np.zeros(0)


def _added(one: Vector, other: Vector) -> Vector:
    """The sums of both sets of rows; one without any row has no columns yet."""
    return one + other if len(one) and len(other) else one if len(one) else other


@dataclass(kw_only=True, slots=True)
class WeightTally:
    """The weights of one candidate; tallies of parts, merged, are that of the whole."""

    #: rows with a larger weight count as clipped
    clip: float
    rows: int = 0
    largest: float = 0.0
    #: over all arms that could have been drawn
    possible: float = 0.0
    clipped: int = 0
    #: rows with a weight above 0
    draws: int = 0
    #: of w, w^2, both of `weight_powers`, the conditional variance, then K unsupported and K shares
    sums: Vector = field(default_factory=_no_sums)

    def add(self, log: Log, *, candidate: Matrix, weight: Vector) -> None:
        """Take in a piece; weight is of the drawn arms, shape (n,)."""
        if not len(log):
            return
        all_ratios = ratios(candidate, logged=log.pmf)
        shifted = candidate * all_ratios  # Q^2 / P
        squares = shifted.sum(axis=1)
        uncovered = np.where(log.pmf > 0.0, 0.0, candidate)
        covered = 1.0 - uncovered.sum(axis=1)
        self.rows += len(log)
        self.largest = max(self.largest, float(weight.max()))
        self.possible = max(self.possible, float(all_ratios.max()))
        self.draws += int(np.count_nonzero(weight > 0.0))
        self.clipped += int(np.count_nonzero(weight > self.clip))
        variance = np.maximum(squares - covered**2, 0.0)
        cubes = (shifted * all_ratios).sum(axis=1)
        rows = np.column_stack([weight, weight * weight, squares, cubes, variance, uncovered, candidate])
        self.sums = _added(self.sums, rows.sum(axis=0))

    def merged(self, other: "WeightTally") -> "WeightTally":
        """The weights of both sets of rows."""
        return WeightTally(
            clip=self.clip,
            rows=self.rows + other.rows,
            largest=max(self.largest, other.largest),
            possible=max(self.possible, other.possible),
            clipped=self.clipped + other.clipped,
            draws=self.draws + other.draws,
            sums=_added(self.sums, other.sums),
        )

    @property
    def total(self) -> float:
        """Sum of w."""
        return self._sum(0)

    @property
    def squares(self) -> float:
        """Sum of w^2."""
        return self._sum(1)

    @property
    def powers(self) -> Vector:
        """`weight_powers` of all rows."""
        return np.array([self._sum(2), self._sum(3)])

    @property
    def variance(self) -> float:
        """Sum of the conditional variances of w."""
        return self._sum(4)

    @property
    def unsupported(self) -> Vector:
        """Probability given to arms where the logger had none, summed over the rows, shape (K,)."""
        return np.split(self.sums[5:], 2)[0]

    @property
    def shares(self) -> Vector:
        """Summed probabilities, shape (K,)."""
        return np.split(self.sums[5:], 2)[1]

    def _sum(self, column: int) -> float:
        return float(self.sums[column]) if self.rows else 0.0

    @property
    def unsupported_mass(self) -> float:
        """Share of the candidate's probability that no row can speak of."""
        return float(self.unsupported.sum()) / self.rows if self.rows else 0.0

    @property
    def effective_rows(self) -> float:
        """(sum w)^2 / sum w^2."""
        return effective_rows(self.total, squares=self.squares)

    @property
    def surely_effective_rows(self) -> float:
        """These, or as many as the probabilities alone expect, whichever are fewer."""
        expected = float(self.powers[0])
        return surely_effective_rows(self.total, squares=self.squares, rows=self.rows, expected_squares=expected)

    def mean_interval(self, *, alpha: float = ALPHA) -> tuple[float, float]:
        """Interval of the mean weight; 1 - unsupported_mass lies outside for at most a share alpha of right logs."""
        off = deviation(self.variance, largest=max(self.possible, 1.0), alpha=alpha) / self.rows
        return self.total / self.rows - off, self.total / self.rows + off

    def plausible(self, *, alpha: float = ALPHA) -> bool:
        """True if the mean weight is consistent with the logged probabilities."""
        low, high = self.mean_interval(alpha=alpha)
        return low - 1e-9 <= 1.0 - self.unsupported_mass <= high + 1e-9


@dataclass(kw_only=True, slots=True)
class ArmTally:
    """Draws and rewards per arm, merged as `WeightTally` is."""

    rows: int = 0
    #: of (surplus, its variance)
    surplus_sums: Vector = field(default_factory=_no_sums)
    #: of K expected, K variances, K drawn, then reward, quality and cost of K arms each
    arm_sums: Vector = field(default_factory=_no_sums)

    def add(self, log: Log) -> None:
        """Take in a piece."""
        powers = log.pmf * log.pmf
        squares, cubes = powers.sum(axis=1), (powers * log.pmf).sum(axis=1)
        surplus = np.column_stack([log.propensity - squares, np.maximum(cubes - squares**2, 0.0)])
        drawn = (log.action[:, None] == np.arange(len(log.arms))).astype(np.float64)
        targets = [values @ drawn for values in (log.reward, log.quality, log.cost)]
        arms = [log.pmf.sum(axis=0), (log.pmf - powers).sum(axis=0), drawn.sum(axis=0), *targets]
        self._take(rows=len(log), surplus=surplus.sum(axis=0), arms=np.concatenate(arms))

    def merged(self, other: "ArmTally") -> "ArmTally":
        """The draws of both sets of rows."""
        both = ArmTally(rows=self.rows, surplus_sums=self.surplus_sums, arm_sums=self.arm_sums)
        both._take(rows=other.rows, surplus=other.surplus_sums, arms=other.arm_sums)
        return both

    def _take(self, *, rows: int, surplus: Vector, arms: Vector) -> None:
        self.rows += rows
        self.surplus_sums, self.arm_sums = _added(self.surplus_sums, surplus), _added(self.arm_sums, arms)

    @property
    def expected(self) -> Vector:
        """Summed probabilities, shape (K,)."""
        return self._parts[0]

    @property
    def variance(self) -> Vector:
        """Of the draws, shape (K,)."""
        return np.maximum(self._parts[1], 0.0)

    @property
    def drawn(self) -> Vector:
        """Rows that drew the arm, shape (K,)."""
        return self._parts[2]

    @property
    def sums(self) -> Matrix:
        """Summed over the rows that drew the arm, columns reward, quality, cost, shape (K, 3)."""
        return np.stack(self._parts[3:], axis=1)

    @property
    def surplus(self) -> float:
        """Logged probability of the arms that were drawn, summed, less its expectation."""
        return float(self.surplus_sums[0]) if self.rows else 0.0

    @property
    def surplus_variance(self) -> float:
        """The variance of the surplus."""
        return float(self.surplus_sums[1]) if self.rows else 0.0

    @property
    def _parts(self) -> list[Vector]:
        return np.split(self.arm_sums, 6)

    def likely(self, *, alpha: float = ALPHA) -> bool:
        """True if the drawn arms were about as likely as arms drawn from these pmfs are: it finds pmfs of other rows.

        The probability of the arm that is drawn from p has mean sum p^2 and variance sum p^3 - (sum p^2)^2.
        """
        return abs(self.surplus) <= deviation(self.surplus_variance, largest=1.0, alpha=alpha)

    def plausible(self, *, alpha: float = ALPHA) -> list[bool]:
        """Per arm: whether it was drawn about as often as logged."""
        allowed = [deviation(float(v), largest=1.0, alpha=alpha) for v in self.variance]
        return [bool(abs(d - e) <= most) for d, e, most in zip(self.drawn, self.expected, allowed, strict=True)]
