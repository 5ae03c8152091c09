"""A log of n decisions over K arms as arrays, and the checks of its rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ragbandit.router.offline.estimation import Keys, Strings, Tally
from ragbandit.shared.types import ArmName, Flags, Indices, Matrix, Vector, effective_rows, surely_effective_rows

#: absolute tolerance of the sum of a pmf, and relative tolerance of other numbers, which may have been float32
SUM_TOLERANCE = 1e-6
#: smallest allowed probability of a drawn arm; with smaller ones, the cube of the weight could overflow
LEAST_PROBABILITY = 1e-80
#: smallest probability of an arm that was not drawn: smaller ones are rounding errors and count as 0
REMAINDER = 1e-9
ROUNDING = 1e-9
#: largest number allowed in a log, so that squares of weighted rewards stay finite
LARGEST = 1e60
#: a question is recognised by its text; without text by its features; without both by the decision's id
BY_TEXT, BY_FEATURES, BY_ID = range(3)


def slack(size: Any) -> Any:
    """Largest difference that rounding makes between two equal numbers of this size. Arrays work too."""
    return ROUNDING + SUM_TOLERANCE * abs(size)


def propensity_fault(probability: float) -> tuple[str, str]:
    """Returns (reason, remedy) for a probability with which no arm can have been drawn."""
    reason = f"is {probability:.9g}"
    if 0.0 < probability < LEAST_PROBABILITY:
        remedy = "log the probability that the drawn arm had, or leave the row out (--skip-bad)"
        return f"{reason}: too small to be a probability that was drawn", remedy
    return f"{reason}, outside (0, 1]", "log the probability that the drawn arm had"


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log of n decisions over K arms. Arrays have shape (n,), matrices (n, K), unless stated otherwise."""

    arms: tuple[ArmName, ...]
    keys: Keys  #: hashes of the decision ids
    questions: Keys  #: hashes of the questions without context; they choose the folds
    recognised_by: Indices  #: how the question is recognised: BY_TEXT, BY_FEATURES or BY_ID
    action: Indices  #: index of the drawn arm
    pmf: Matrix  #: logged probabilities; 0 for an arm that was not offered or could not be drawn
    offered: Flags  #: True if the arm was offered, shape (n, K)
    reward: Vector
    quality: Vector
    cost: Vector
    minimum: float
    maximum: float
    #: True if the cost weight does not apply: the reward was given without quality and cost, or is the default
    raw: Flags
    defaulted: Flags  #: True if the reward is the default, as there was no feedback
    made_at: Vector  #: seconds since the epoch; 0 if not known
    #: line of each row in its file, from 1; None if the rows are not from a file
    lines: Indices | None = None
    #: True if a judge gave the reward; None if the log does not record who gave it
    judged: Flags | None = None
    #: True if the decision was made elsewhere and imported; None means False in all rows
    imported: Flags | None = None
    #: True if only the drawn arm's probability was logged, and the others share the rest evenly; None means all False
    partial: Flags | None = None
    #: True if the request had its own cost weight; None if the log has no such column
    priced: Flags | None = None
    #: features of the questions, shape (n, d); None if a row has none, or if several encoders made them
    features: npt.NDArray[np.float32] | None = None
    encoder_hash: str = ""
    #: field for segments -> its value in every row: "tenant", "version", "policy" or a key of the context
    fields: Mapping[str, Strings] = field(default_factory=dict)
    #: name of a candidate -> its pmf in every row, which the log has as a column, or which it learned from the log
    pmfs: Mapping[str, Matrix] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.action)

    @property
    def propensity(self) -> Vector:
        return np.take_along_axis(self.pmf, self.action[:, None], axis=1)[:, 0]

    def weighted(self, weight: float, *, rows: Flags | None = None) -> "Log":
        """The log with reward = quality - weight * cost, except for `raw` rewards. rows: rows to change; None for all.

        The bounds are widened to include all rewards: if they were cut at the former bounds, several expensive arms
        could get the same reward.
        """
        unchanged = self.raw if rows is None else self.raw | ~rows
        reward = np.where(unchanged, self.reward, self.quality - weight * self.cost)
        low, high = float(reward.min(initial=self.minimum)), float(reward.max(initial=self.maximum))
        return replace(self, reward=reward, minimum=low, maximum=high)

    @property
    def nbytes(self) -> int:
        arrays = [*vars(self).values(), *self.fields.values(), *self.pmfs.values()]
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def part(self, rows: Flags | Indices | slice) -> "Log":
        """The log with only these rows."""
        arrays: dict[str, Any] = {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return replace(
            self,
            **{name: array[rows] for name, array in arrays.items()},
            fields={name: values[rows] for name, values in self.fields.items()},
            pmfs={name: pmf[rows] for name, pmf in self.pmfs.items()},
        )


def without_tiny(pmf: Matrix, *, action: Indices) -> Matrix:
    """The pmf (n, K) with 0 for probabilities below REMAINDER; drawn arms keep their probability."""
    tiny = (pmf > 0.0) & (pmf < REMAINDER)
    if not tiny.any():
        return pmf
    return np.where(tiny & (np.arange(pmf.shape[1]) != action[:, None]), 0.0, pmf)


def unsupported_arms(pmf: Matrix, *, candidate: Matrix) -> Flags:
    """Flags (n, K) of arms that the candidate may draw but the logged policy could not."""
    return (pmf <= 0.0) & (candidate >= REMAINDER)


def wrong_pmfs(pmf: Matrix, *, offered: Flags | None = None) -> Indices:
    """Indices of rows whose pmf (n, K) is not a distribution, or is above 0 for an arm that was not offered."""
    with np.errstate(invalid="ignore"):
        sums = np.einsum("nk->n", pmf)
        # NaN fails both comparisons. The whole matrix is checked first, which is fast and mostly succeeds.
        all_good = pmf.size == 0 or (pmf.min() >= 0.0 and np.abs(sums - 1.0).max() <= SUM_TOLERANCE)
    if all_good and (offered is None or offered.all()):
        return np.zeros(0, dtype=np.intp)
    good = (pmf >= 0.0).all(axis=1) & (np.abs(sums - 1.0) <= SUM_TOLERANCE)
    if offered is not None:
        good &= ~((pmf > 0.0) & ~offered).any(axis=1)
    return np.flatnonzero(~good)


def folds_of(keys: Keys, *, folds: int) -> Indices:
    """The fold of each question, shape (n,). keys: hashes of the questions"""
    return (keys % np.uint64(folds)).astype(np.intp)


#: largest probability that the checks of a replay reject a correct log
ALPHA = 1e-3


def deviation(variance: float, *, largest: float, alpha: float) -> float:
    """Limit that the absolute sum of deviations exceeds with at most the probability `alpha` (Freedman's inequality).

    variance: sum of the conditional variances. largest: bound of a single deviation.
    The limit t solves 2 exp(-t^2 / (2 variance + 2 largest t / 3)) = alpha.
    """
    log = math.log(2.0 / alpha)
    third = largest * log / 3.0
    return third + math.sqrt(third * third + 2.0 * variance * log)


def _no_arms() -> Vector:
    return np.zeros(1)


@dataclass(kw_only=True, slots=True)
class WeightTally(Tally):
    """Sums of the importance weights w = candidate's probability / logged probability of one candidate."""

    rows: int = 0
    draws: int = 0  #: rows with a weight above 0
    total: float = 0.0
    squares: float = 0.0
    powers: Vector = field(default_factory=lambda: np.zeros(2))  #: sums for `heavy_weight`
    variance: float = 0.0  #: sum of the conditional variances of the weights
    #: sum of the candidate's probabilities of arms that could not be drawn, shape (K,)
    unsupported: Vector = field(default_factory=_no_arms)
    shares: Vector = field(default_factory=_no_arms)
    largest: float = field(default=0.0, metadata={"merge": max})
    #: largest weight over all arms that could have been drawn, whether or not they were drawn
    possible: float = field(default=0.0, metadata={"merge": max})

    def add(self, log: Log, *, candidate: Matrix) -> None:
        if not len(log):
            return
        ratios = np.divide(candidate, log.pmf, out=np.zeros_like(candidate), where=log.pmf > 0.0)
        weight = np.take_along_axis(ratios, log.action[:, None], axis=1)[:, 0]
        shifted = candidate * ratios  # Q^2 / P
        squares = shifted.sum(axis=1)
        uncovered = np.where(unsupported_arms(log.pmf, candidate=candidate), candidate, 0.0)
        self.rows += len(log)
        self.draws += int(np.count_nonzero(weight))
        self.total += float(weight.sum())
        self.squares += float(weight @ weight)
        self.powers = self.powers + np.array([squares.sum(), (shifted * ratios).sum()])
        self.variance += float(np.maximum(squares - (1.0 - uncovered.sum(axis=1)) ** 2, 0.0).sum())
        self.unsupported = self.unsupported + uncovered.sum(axis=0)
        self.shares = self.shares + candidate.sum(axis=0)
        self.largest = max(self.largest, float(weight.max()))
        self.possible = max(self.possible, float(ratios.max()))

    @property
    def unsupported_mass(self) -> float:
        return float(self.unsupported.sum()) / self.rows if self.rows else 0.0

    @property
    def effective_rows(self) -> float:
        return effective_rows(self.total, squares=self.squares)

    @property
    def surely_effective_rows(self) -> float:
        """`effective_rows`, or the number that the probabilities of all arms predict, whichever is smaller."""
        expected = float(self.powers[0])
        return surely_effective_rows(self.total, squares=self.squares, rows=self.rows, expected_squares=expected)

    def mean_interval(self, *, alpha: float = ALPHA) -> tuple[float, float]:
        """Interval of the mean weight. In a correct log it contains 1 - unsupported_mass, except with chance alpha."""
        off = deviation(self.variance, largest=max(self.possible, 1.0), alpha=alpha) / self.rows
        return self.total / self.rows - off, self.total / self.rows + off

    def plausible(self, *, alpha: float = ALPHA) -> bool:
        """Whether the mean weight is about as large as in a correct log."""
        low, high = self.mean_interval(alpha=alpha)
        return low - 1e-9 <= 1.0 - self.unsupported_mass <= high + 1e-9


@dataclass(kw_only=True, slots=True)
class ArmTally(Tally):
    rows: int = 0
    expected: Vector = field(default_factory=_no_arms)  #: sum of the logged probabilities, shape (K,)
    variance: Vector = field(default_factory=_no_arms)
    drawn: Vector = field(default_factory=_no_arms)
    #: sums of reward, quality and cost over the rows that drew the arm, shape (K, 3)
    sums: Matrix = field(default_factory=_no_arms)
    #: sum over the rows of the difference: probability of the drawn arm - expected probability of a drawn arm
    surplus: float = 0.0
    surplus_variance: float = 0.0

    def add(self, log: Log) -> None:
        powers = log.pmf * log.pmf
        squares, cubes = powers.sum(axis=1), (powers * log.pmf).sum(axis=1)
        drawn = (log.action[:, None] == np.arange(len(log.arms))).astype(np.float64)
        self.rows += len(log)
        self.expected = self.expected + log.pmf.sum(axis=0)
        self.variance = self.variance + (log.pmf - powers).sum(axis=0)
        self.drawn = self.drawn + drawn.sum(axis=0)
        self.sums = self.sums + np.stack([values @ drawn for values in (log.reward, log.quality, log.cost)], axis=1)
        self.surplus += float((log.propensity - squares).sum())
        self.surplus_variance += float(np.maximum(cubes - squares**2, 0.0).sum())

    def likely(self, *, alpha: float = ALPHA) -> bool:
        """Whether the logged probabilities of the drawn arms are about as large as draws from the logged pmfs give.

        If not, the pmfs belong to other rows. If an arm is drawn from the pmf p, its probability has the mean sum p^2
        and the variance sum p^3 - (sum p^2)^2, with sums over the arms.
        """
        return abs(self.surplus) <= deviation(self.surplus_variance, largest=1.0, alpha=alpha)

    def plausible(self, *, alpha: float = ALPHA) -> list[bool]:
        """For each arm, whether it was drawn about as often as its logged probabilities give."""
        limits = [deviation(max(float(variance), 0.0), largest=1.0, alpha=alpha) for variance in self.variance]
        gaps = np.abs(self.drawn - self.expected)
        return [bool(gap <= limit) for gap, limit in zip(gaps, limits, strict=True)]
