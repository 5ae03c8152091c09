"""A log of n decisions over K arms as arrays, and the checks of its rows."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ragbandit.router.offline.estimation import Choices, Flags, Keys, Strings, Tally
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Matrix, Vector, effective_rows, surely_effective_rows

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
#: texts are hashed in words of 8 bytes; if no text has more than this number of words, all are padded to one width
_WORDS = 16
#: texts of more bytes than this are hashed one by one, since hashing all texts word by word would take minutes
_LONG = 1 << 17


def slack(size: Any) -> Any:
    """Largest rounding difference between two numbers of about this size. Arrays work too."""
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
    known_by: Choices  #: how the question is recognised: BY_TEXT, BY_FEATURES or BY_ID
    action: Choices  #: index of the drawn arm
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
    late: Flags  #: True if more feedback came after the decision was learned
    made_at: Vector  #: seconds since the epoch; 0 if not known
    #: line of each row in its file, from 1; None if the rows are not from a file
    lines: Choices | None = None
    #: True if a judge gave the reward; None if the log does not record who gave it
    judged: Flags | None = None
    #: True if the decision was made elsewhere and imported; None if no row is so
    imported: Flags | None = None
    #: True if only the drawn arm's probability was logged, and the others share the rest evenly; None if no row is so
    partial: Flags | None = None
    #: True if the request had its own cost weight; None if the log has no such column
    priced: Flags | None = None
    #: features of the questions, shape (n, d); None if a row has none, or if several encoders made them
    features: npt.NDArray[np.float32] | None = None
    encoder_hash: str = ""
    #: field for segments -> its value in every row: "tenant", "version", "policy" or a key of the context
    fields: Mapping[str, Strings] = field(default_factory=dict)
    #: column with the pmf of a candidate -> its probabilities
    own: Mapping[str, Matrix] = field(default_factory=dict)
    candidates: tuple[Matrix, ...] = ()
    #: Arrow record batch with the questions and rewards of the rows; None unless policies read them
    batch: Any = None

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
        arrays = [*vars(self).values(), *self.fields.values(), *self.own.values(), *self.candidates]
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def part(self, rows: Flags | Choices | slice) -> "Log":
        arrays: dict[str, Any] = {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return replace(
            self,
            **{name: array[rows] for name, array in arrays.items()},
            fields={name: values[rows] for name, values in self.fields.items()},
            own={name: pmf[rows] for name, pmf in self.own.items()},
            candidates=tuple(pmf[rows] for pmf in self.candidates),
            batch=None if self.batch is None else self.batch.take(np.arange(len(self))[rows]),
        )

    def check(self, *, named: Callable[[int], str]) -> None:
        faults = [
            (int(np.argmin(good)), name, message, remedy)
            for name, good, message, remedy in self._checks()
            if not good.all()
        ]
        if faults:
            row, name, message, remedy = min(faults, key=lambda fault: fault[0])
            raise InvalidInput(message(row), field=f"{named(row)} {name}", remedy=remedy)

    def _checks(self) -> Iterator[tuple[str, Flags, Callable[[int], str], str]]:
        """Yields (field, good rows, message for a bad row, remedy)."""
        pmf, rows = self.pmf, np.arange(len(self))
        good = np.ones(len(self), dtype=np.bool_)
        good[wrong_pmfs(pmf)] = False
        remedy = "log the whole pmf: numbers in [0, 1] that sum to 1"
        yield (
            "pmf",
            good,
            lambda row: f"{pmf[row].tolist()} is no distribution, it sums to {pmf[row].sum():.9g}",
            remedy,
        )
        if not self.offered.all():
            good = np.asarray(~((pmf > 0.0) & ~self.offered).any(axis=1))
            remedy = "correct the arms or the pmf"
            yield "pmf", good, lambda _: "gives probability to an arm that was not offered", remedy
        good = (self.action >= 0) & (self.action < len(self.arms))
        yield "arm", good, lambda _: "is not among the arms of the pmf", "log the arm that was drawn"
        drawn = pmf[rows, np.where(good, self.action, 0)]
        good = (drawn >= LEAST_PROBABILITY) & (drawn <= 1.0 + SUM_TOLERANCE)
        reason, remedy = propensity_fault(float(drawn[np.argmin(good)])) if len(self) else ("", "")
        yield "propensity", good, lambda _: reason, remedy
        remedy = f"log a finite number, at most {LARGEST:g}"
        for name in ("quality", "cost", "made_at", "reward"):
            values: Vector = getattr(self, name)
            yield name, np.abs(values) <= LARGEST, lambda row, v=values: f"is {v[row]}", remedy  # type: ignore[misc]
        low, high = self.minimum - slack(self.minimum), self.maximum + slack(self.maximum)
        yield (
            "reward",
            (self.reward >= low) & (self.reward <= high),
            lambda row: f"{self.reward[row]:.9g} lies outside [{self.minimum:g}, {self.maximum:g}]",
            "declare the bounds that the rewards have (minimum, maximum)",
        )
        if self.features is not None:
            good = np.asarray(np.isfinite(self.features).all(axis=1))
            yield "features", good, lambda _: "hold a number that is not finite", "encode the question again"


def possible(pmf: Matrix, *, action: Choices) -> Matrix:
    """The pmf (n, K) with 0 for probabilities below REMAINDER, except those of drawn arms."""
    tiny = (pmf > 0.0) & (pmf < REMAINDER)
    if not tiny.any():
        return pmf
    return np.where(tiny & (np.arange(pmf.shape[1]) != action[:, None]), 0.0, pmf)


def unsupported(pmf: Matrix, *, candidate: Matrix) -> Flags:
    """Flags (n, K) of arms that the candidate may draw but the logged policy could not."""
    return (pmf <= 0.0) & (candidate >= REMAINDER)


def wrong_pmfs(pmf: Matrix, *, offered: Flags | None = None) -> Choices:
    """Indices of rows whose pmf, shape (n, K), is no distribution or gives probability to an arm not offered."""
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


def folds_of(keys: Keys, *, folds: int) -> Choices:
    return (keys % np.uint64(folds)).astype(np.intp)


def keys_of_bytes(text: npt.NDArray[np.uint8], *, lengths: npt.NDArray[np.int64]) -> Keys:
    """Hash concatenated texts of these lengths in bytes. A hash depends only on its text, on every machine."""
    words = -(-lengths // 8)
    if words.max(initial=0) <= _WORDS:
        return _keys_of_padded(text, lengths=lengths)
    long = np.flatnonzero(lengths > _LONG)
    if len(long):
        ends = np.cumsum(lengths)[long]
        texts = [text[end - size : end].tobytes() for end, size in zip(ends, lengths[long], strict=True)]
        digests = [hashlib.blake2b(long_text, digest_size=8).digest() for long_text in texts]
        short = np.setdiff1d(np.arange(len(lengths)), long)
        keys = np.empty(len(lengths), dtype=np.uint64)
        keys[long] = np.frombuffer(b"".join(digests), dtype="<u8")
        keys[short] = keys_of_bytes(text[np.repeat(lengths <= _LONG, lengths)], lengths=lengths[short])
        return keys
    # Texts of about the same length are padded together, so that one long text does not pad all others.
    keys = np.zeros(len(lengths), dtype=np.uint64)
    sizes = np.ceil(np.log2(np.maximum(words, _WORDS))).astype(np.intp)
    for size in np.unique(sizes):
        rows = sizes == size
        keys[rows] = _keys_of_padded(text[np.repeat(rows, lengths)], lengths=lengths[rows])
    return keys


def _keys_of_padded(text: npt.NDArray[np.uint8], *, lengths: npt.NDArray[np.int64]) -> Keys:
    words = -(-int(lengths.max(initial=0)) // 8)
    padded = np.zeros((len(lengths), 8 * words), dtype=np.uint8)
    padded[np.arange(8 * words) < lengths[:, None]] = text
    keys: Keys = mixed(np.zeros(len(lengths), dtype=np.uint64), lengths.astype(np.uint64))
    for number, word in enumerate(padded.view("<u8").T):
        # Padding must not change a key, since its width depends on the longest text of the batch.
        keys = np.where(8 * number < lengths, mixed(keys, word), keys)
    return keys


def mixed(keys: Keys, words: Keys) -> Keys:
    """Mix a word into each key, both of shape (n,), with the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    keys = (keys + words) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(keys ^ (keys >> np.uint64(31)), dtype=np.uint64)


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
        uncovered = np.where(unsupported(log.pmf, candidate=candidate), candidate, 0.0)
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
        limits = [deviation(max(float(variance), 0.0), largest=1.0, alpha=alpha) for variance in self.variance]
        gaps = np.abs(self.drawn - self.expected)
        return [bool(gap <= limit) for gap, limit in zip(gaps, limits, strict=True)]
