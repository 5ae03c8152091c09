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

__all__ = ["ALPHA", "BIN_EDGES", "ArmTally", "WeightTally", "deviation", "ratios"]

#: chance that a right log is called wrong, over all checks of a replay together
ALPHA = 1e-3
#: of the histogram of log10 w
BIN_EDGES = np.linspace(-4.0, 4.0, 33)


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


@dataclass(kw_only=True, slots=True)
class WeightTally:
    """The weights of one candidate."""

    #: rows with a larger weight count as clipped
    clip: float
    rows: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    #: over all arms that could have been drawn
    possible: float = 0.0
    #: `weight_powers` of all rows
    powers: Vector = field(default_factory=lambda: np.zeros(2))
    clipped: int = 0
    #: sum of the conditional variances of w
    variance: float = 0.0
    #: probability given to arms where the logger had none, summed over the rows, shape (K,)
    unsupported: Vector = field(default_factory=lambda: np.zeros(0))
    #: summed probabilities, shape (K,)
    shares: Vector = field(default_factory=lambda: np.zeros(0))
    counts: Vector = field(default_factory=lambda: np.zeros(len(BIN_EDGES) - 1))

    def add(self, log: Log, *, candidate: Matrix, weight: Vector) -> None:
        """Take in a piece; weight is of the drawn arms, shape (n,)."""
        if not len(log):
            return
        all_ratios = ratios(candidate, logged=log.pmf)
        shifted = candidate * all_ratios  # Q^2 / P
        squares = np.einsum("nk->n", shifted)
        unsupported = np.zeros(len(log.arms))
        covered: Vector | float = 1.0
        if not log.pmf.all():
            uncovered = np.where(log.pmf > 0.0, 0.0, candidate)
            unsupported, covered = np.einsum("nk->k", uncovered), 1.0 - np.einsum("nk->n", uncovered)
        self.rows += len(log)
        self.total += float(weight.sum())
        self.squares += float(np.einsum("n,n->", weight, weight))
        self.largest = max(self.largest, float(weight.max()))
        self.powers = self.powers + np.array([squares.sum(), np.einsum("nk,nk->", shifted, all_ratios)])
        self.possible = max(self.possible, float(all_ratios.max()))
        self.clipped += int(np.count_nonzero(weight > self.clip))
        self.variance += float(np.maximum(squares - covered**2, 0.0).sum())
        self.unsupported = _plus(self.unsupported, unsupported)
        self.shares = _plus(self.shares, np.einsum("nk->k", candidate))
        positive = np.clip(np.log10(weight[weight > 0.0]), BIN_EDGES[0], BIN_EDGES[-1])
        self.counts = self.counts + np.histogram(positive, bins=BIN_EDGES)[0]

    @property
    def unsupported_mass(self) -> float:
        """Share of the candidate's probability that no row can speak of."""
        return float(self.unsupported.sum()) / self.rows if self.rows else 0.0

    @property
    def effective_rows(self) -> float:
        """(sum w)^2 / sum w^2."""
        return 0.0 if self.squares == 0.0 else self.total**2 / self.squares

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
    """Draws and rewards per arm."""

    rows: int = 0
    drawn: Vector = field(default_factory=lambda: np.zeros(0))
    expected: Vector = field(default_factory=lambda: np.zeros(0))
    variance: Vector = field(default_factory=lambda: np.zeros(0))
    #: logged probability of the arms that were drawn, summed: less its expectation, and the variance of that
    surplus: float = 0.0
    surplus_variance: float = 0.0
    #: summed over the rows that drew the arm, columns reward, quality, cost, shape (K, 3)
    sums: Matrix = field(default_factory=lambda: np.zeros((0, 3)))

    def add(self, log: Log) -> None:
        """Take in a piece."""
        count = len(log.arms)
        self.rows += len(log)
        self.drawn = _plus(self.drawn, np.bincount(log.action, minlength=count).astype(np.float64))
        expected, powers = np.einsum("nk->k", log.pmf), log.pmf * log.pmf
        self.expected = _plus(self.expected, expected)
        self.variance = _plus(self.variance, np.maximum(expected - np.einsum("nk->k", powers), 0.0))
        squares, cubes = np.einsum("nk->n", powers), np.einsum("nk,nk->n", powers, log.pmf)
        self.surplus += float((log.propensity - squares).sum())
        self.surplus_variance += float(np.maximum(cubes - squares**2, 0.0).sum())
        columns = [np.bincount(log.action, weights=v, minlength=count) for v in (log.reward, log.quality, log.cost)]
        self.sums = _plus(self.sums, np.stack(columns, axis=1))

    def likely(self, *, alpha: float = ALPHA) -> bool:
        """True if the drawn arms were about as likely as arms drawn from these pmfs are: it finds pmfs of other rows.

        The probability of the arm that is drawn from p has mean sum p^2 and variance sum p^3 - (sum p^2)^2.
        """
        return abs(self.surplus) <= deviation(self.surplus_variance, largest=1.0, alpha=alpha)

    def plausible(self, *, alpha: float = ALPHA) -> list[bool]:
        """Per arm: whether it was drawn about as often as logged."""
        allowed = [deviation(float(v), largest=1.0, alpha=alpha) for v in self.variance]
        return [bool(abs(d - e) <= most) for d, e, most in zip(self.drawn, self.expected, allowed, strict=True)]


def _plus(total: Matrix, more: Matrix) -> Matrix:
    return more if total.size == 0 else total + more
