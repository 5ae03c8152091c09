"""A log of decisions as arrays: all that the estimators read.

n decisions over K arms. The checks are here too: nothing is estimated from a row that cannot be true.
"""

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

#: a pmf sums to 1 within this; two numbers are equal if they differ by this share, as 32 bits from 64 bits do
SUM_TOLERANCE = 1e-6
#: no arm is drawn with less: a softmax without a floor computes such numbers, and cubes of their weights overflow
LEAST_PROBABILITY = 1e-80
#: other arms with less are rounding remainders of a certain draw: they count as arms that could not be drawn
REMAINDER = 1e-9
#: numbers are equal within this, however small they are
ROUNDING = 1e-9
#: no number is larger: squares of weighted rewards stay finite
LARGEST = 1e60
#: how a row's question is known: by its text; by its features, where the log keeps no text; by the decision's id, where
#: it has neither: then a repeated question is not recognised
BY_TEXT, BY_FEATURES, BY_ID = range(3)
#: longest bytes, in words of eight, that are padded to one width whatever the others are
_WORDS = 16
#: texts of more bytes are hashed by themselves: a step for every word of theirs would take minutes
_LONG = 1 << 17


def slack(size: Any) -> Any:
    """How far two numbers of about this size (or arrays of them) may lie apart by rounding."""
    return ROUNDING + SUM_TOLERANCE * abs(size)


def propensity_fault(probability: float) -> tuple[str, str]:
    """Why no arm can have been drawn with this probability, and the remedy."""
    reason = f"is {probability:.9g}"
    if 0.0 < probability < LEAST_PROBABILITY:
        remedy = "log the probability that the drawn arm had, or leave the row out (--skip-bad)"
        return f"{reason}: too small to be a probability that was drawn", remedy
    return f"{reason}, outside (0, 1]", "log the probability that the drawn arm had"


@dataclass(frozen=True, kw_only=True)
class Log:
    """Arrays aligned by row; `pmf` and `offered` have a column per arm."""

    arms: tuple[ArmName, ...]
    #: hashes of the decision ids, shape (n,)
    keys: Keys
    #: hashes of the questions, which choose the folds, without context, which may differ in every request; and how each
    #: question is recognised: BY_TEXT, BY_FEATURES or BY_ID; both of shape (n,)
    questions: Keys
    known_by: Choices
    #: place of the arm that was drawn, shape (n,)
    action: Choices
    #: probability of every arm when it was drawn, shape (n, K); 0 where it was not offered, or could not be drawn
    pmf: Matrix
    #: which arms were offered, shape (n, K)
    offered: Flags
    #: the reward that was learned and its parts, shape (n,)
    reward: Vector
    quality: Vector
    cost: Vector
    #: the rewards' declared bounds
    minimum: float
    maximum: float
    #: the reward came whole from the caller, or by default: no other weight of cost can be put on it; shape (n,)
    raw: Flags
    #: without feedback: the default reward; shape (n,)
    defaulted: Flags
    #: more feedback came after the decision was learned, shape (n,)
    late: Flags
    #: seconds since the epoch, shape (n,)
    made_at: Vector
    #: where the row stands in its file, from 1, shape (n,); None: in none
    lines: Choices | None = None
    #: the reward is a judge's, as it was learned, shape (n,); None: not known
    judged: Flags | None = None
    #: rows that were served at a weight of cost of their own, shape (n,); None if there is no such row
    priced: Flags | None = None
    #: features of the questions, shape (n, d), and the encoder that made them; None where the log has none
    features: npt.NDArray[np.float32] | None = None
    encoder_hash: str = ""
    #: name of a field -> its value in every row, for segments: "tenant", "version", fields of the context
    fields: Mapping[str, Strings] = field(default_factory=dict)
    #: name of a column -> the pmf of a candidate that stands in the rows, shape (n, K)
    own: Mapping[str, Matrix] = field(default_factory=dict)
    #: the probabilities that each candidate gives to the arms, shape (n, K) each
    candidates: tuple[Matrix, ...] = ()

    def __len__(self) -> int:
        return len(self.action)

    @property
    def propensity(self) -> Vector:
        """Logged probability of the arm that was drawn, shape (n,)."""
        return np.take_along_axis(self.pmf, self.action[:, None], axis=1)[:, 0]

    def weighted(self, weight: float, *, rows: Flags | None = None) -> "Log":
        """The same log with reward = quality - weight * cost. Rewards that came whole stay.

        rows: the rows to change, shape (n,); None for all.
        The bounds grow to include all rewards: cut at the bounds of another weight, expensive arms would look alike.
        """
        kept = self.raw if rows is None else self.raw | ~rows
        reward = np.where(kept, self.reward, self.quality - weight * self.cost)
        low, high = float(reward.min(initial=self.minimum)), float(reward.max(initial=self.maximum))
        return replace(self, reward=reward, minimum=low, maximum=high)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = [*vars(self).values(), *self.fields.values(), *self.own.values(), *self.candidates]
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def part(self, rows: Flags | Choices | slice) -> "Log":
        """Some of the rows, in the order given."""
        arrays: dict[str, Any] = {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return replace(
            self,
            **{name: array[rows] for name, array in arrays.items()},
            fields={name: values[rows] for name, values in self.fields.items()},
            own={name: pmf[rows] for name, pmf in self.own.items()},
            candidates=tuple(pmf[rows] for pmf in self.candidates),
        )

    def check(self, *, named: Callable[[int], str]) -> None:
        """Raises InvalidInput with the first row that cannot be true, the field and the remedy. named: row -> words."""
        wrong = [
            (int(np.argmin(good)), name, message, remedy)
            for name, good, message, remedy in self._checks()
            if not good.all()
        ]
        if wrong:
            row, name, message, remedy = min(wrong, key=lambda fault: fault[0])
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
            yield (
                "pmf",
                good,
                lambda _: "gives probability to an arm that was not offered",
                "correct the arms or the pmf",
            )
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
    """The pmf (n, K) with 0 for remainders: probabilities below REMAINDER of arms other than the drawn one."""
    tiny = (pmf > 0.0) & (pmf < REMAINDER)
    if not tiny.any():
        return pmf
    return np.where(tiny & (np.arange(pmf.shape[1]) != action[:, None]), 0.0, pmf)


def unsupported(pmf: Matrix, *, candidate: Matrix) -> Flags:
    """Where a candidate gives probability to an arm that could not be drawn, shape (n, K)."""
    return (pmf <= 0.0) & (candidate >= REMAINDER)


def wrong_pmfs(pmf: Matrix, *, offered: Flags | None = None) -> Choices:
    """Rows whose pmf, shape (n, K), is not a distribution over the arms, or over the offered arms."""
    with np.errstate(invalid="ignore"):
        sums = np.einsum("nk->n", pmf)
        # Written so that NaN is no pmf. What follows for every row is asked of the whole first: it is mostly true.
        fine = pmf.size == 0 or (pmf.min() >= 0.0 and np.abs(sums - 1.0).max() <= SUM_TOLERANCE)
    if fine and (offered is None or offered.all()):
        return np.zeros(0, dtype=np.intp)
    good = (pmf >= 0.0).all(axis=1) & (np.abs(sums - 1.0) <= SUM_TOLERANCE)
    if offered is not None:
        good &= ~((pmf > 0.0) & ~offered).any(axis=1)
    return np.flatnonzero(~good)


def folds_of(keys: Keys, *, folds: int) -> Choices:
    """The fold of each row, shape (n,), in 0 ... folds - 1. It depends only on the key, not on other rows."""
    return (keys % np.uint64(folds)).astype(np.intp)


def keys_of_bytes(text: npt.NDArray[np.uint8], *, lengths: npt.NDArray[np.int64]) -> Keys:
    """The hashes of texts that follow each other in `text`; lengths in bytes, shape (n,).

    A text's hash is the same on every machine and among any other texts.
    """
    words = -(-lengths // 8)
    if words.max(initial=0) <= _WORDS:
        return _keys_of_padded(text, lengths=lengths)
    if len(long := np.flatnonzero(lengths > _LONG)):
        ends = np.cumsum(lengths)[long]
        texts = [text[end - size : end].tobytes() for end, size in zip(ends, lengths[long], strict=True)]
        digests = [hashlib.blake2b(one, digest_size=8).digest() for one in texts]
        short = np.setdiff1d(np.arange(len(lengths)), long)
        keys = np.empty(len(lengths), dtype=np.uint64)
        keys[long] = np.frombuffer(b"".join(digests), dtype="<u8")
        keys[short] = keys_of_bytes(text[np.repeat(lengths <= _LONG, lengths)], lengths=lengths[short])
        return keys
    # One long text must not pad all others to its length: rows of about one length are padded together.
    keys, sizes = np.zeros(len(lengths), dtype=np.uint64), np.ceil(np.log2(np.maximum(words, _WORDS))).astype(np.intp)
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
        # A longer text in another row must not change a row's key.
        keys = np.where(8 * number < lengths, mixed(keys, word), keys)
    return keys


def mixed(keys: Keys, words: Keys) -> Keys:
    """A word more in every key, both of shape (n,), by splitmix64's finaliser (Steele, Lea and Flood 2014)."""
    keys = (keys + words) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(keys ^ (keys >> np.uint64(31)), dtype=np.uint64)


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


def _no_arms() -> Vector:
    """Sums with an entry per arm before any row."""
    return np.zeros(1)


@dataclass(kw_only=True, slots=True)
class WeightTally(Tally):
    """The weights w of one candidate."""

    rows: int = 0
    #: rows with a weight above 0
    draws: int = 0
    #: sums of w and of w^2, and what `heavy_weight` reads
    total: float = 0.0
    squares: float = 0.0
    powers: Vector = field(default_factory=lambda: np.zeros(2))
    #: sum of the conditional variances of w
    variance: float = 0.0
    #: probability given to arms where the logger had none, and probability given to all, summed, shape (K,)
    unsupported: Vector = field(default_factory=_no_arms)
    shares: Vector = field(default_factory=_no_arms)
    #: largest w, and the largest over all arms that could have been drawn
    largest: float = field(default=0.0, metadata={"merge": max})
    possible: float = field(default=0.0, metadata={"merge": max})

    def add(self, log: Log, *, candidate: Matrix) -> None:
        """Take in a piece; candidate: the pmf, shape (n, K)."""
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
class ArmTally(Tally):
    """Draws and rewards per arm."""

    rows: int = 0
    #: probabilities of the arm, variances of its draws, and rows that drew it, summed, shape (K,)
    expected: Vector = field(default_factory=_no_arms)
    variance: Vector = field(default_factory=_no_arms)
    drawn: Vector = field(default_factory=_no_arms)
    #: columns reward, quality, cost, summed over the rows that drew the arm, shape (K, 3)
    sums: Matrix = field(default_factory=_no_arms)
    #: logged probability of the arms that were drawn, summed, less its expectation; and its variance
    surplus: float = 0.0
    surplus_variance: float = 0.0

    def add(self, log: Log) -> None:
        """Take in a piece."""
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
        """True if the drawn arms were about as likely as arms drawn from these pmfs are: it finds pmfs of other rows.

        The probability of the arm that is drawn from p has mean sum p^2 and variance sum p^3 - (sum p^2)^2.
        """
        return abs(self.surplus) <= deviation(self.surplus_variance, largest=1.0, alpha=alpha)

    def plausible(self, *, alpha: float = ALPHA) -> list[bool]:
        """Per arm: whether it was drawn about as often as logged."""
        allowed = [deviation(max(float(v), 0.0), largest=1.0, alpha=alpha) for v in self.variance]
        return [bool(abs(d - e) <= most) for d, e, most in zip(self.drawn, self.expected, allowed, strict=True)]
