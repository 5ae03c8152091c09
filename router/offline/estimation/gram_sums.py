"""What ridge regressions per arm need of their rows, as exact sums: those of parts, merged, are those of the whole.

Features are taken apart into digits of 21 bits, relative to a scale of their column that is the same for all parts: all
that float32 holds, but for what is less than 2^-16 of the column's largest. BLAS multiplies and adds whole numbers
without rounding, so no processor, number of threads or cut of the rows can be seen in the result. Of the products of
two digits the smallest, lowest times lowest, is left out, for every row alike.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.exact_sums import DIGIT, WholeSums, digits
from ragbandit.router.offline.types import Choices, Matrix, Vector

__all__ = ["HEAD", "ROWS", "GramSums", "Scales", "applied", "row_groups", "scales_of"]

#: exponent of every column, shape (d,)
Scales = npt.NDArray[np.intp]

_BITS = 21
#: bits of the highest digit that are left for values above the scale
_ROOM = 2
#: rows at the beginning of a log that give the columns their scales
HEAD = 1024
#: rows whose products are added at a time: 2^11 times 2^42 is 2^53
ROWS = 1 << 11
#: bits of a digit of a coefficient, and features whose products with them are added at a time: 2^(21 + 18 + 13) < 2^53
_SLOPE, _WIDTH = 18, 1 << 13


def scales_of(head: Matrix | npt.NDArray[np.float32]) -> Scales:
    """The scales of a log's columns, from its first rows (m, d), HEAD of them; a column of zeros has the scale of 1."""
    if not np.isfinite(head).all():
        raise InvalidInput("hold a number that is not finite", field="features", remedy="encode the question again")
    largest = np.abs(head[:HEAD].astype(np.float64)).max(axis=0, initial=0.0)
    return np.asarray(np.clip(np.frexp(largest)[1], -900, 900), dtype=np.intp)


def _digits(features: Matrix, *, scales: Scales) -> list[tuple[int, Matrix]]:
    """(exponent, whole numbers (m, d)), lowest digit first: features = sum of wholes 2^exponent, times 2^scales.

    There are two digits, and more where a value is far above its column's scale.
    """
    exponent = _ROOM - _BITS
    scaled = features * np.ldexp(1.0, -scales - exponent)
    rest = np.rint(scaled)
    most = max(float(rest.max(initial=0.0)), -float(rest.min(initial=0.0)))
    if not math.isfinite(most):
        raise InvalidInput("hold a number that is not finite", field="features", remedy="encode the question again")
    scaled -= rest
    scaled *= 2.0**_BITS
    found = [(exponent - _BITS, np.rint(scaled, out=scaled))]
    while most >= 2.0**_BITS:
        above = np.trunc(rest * 2.0**-_BITS)  # 0 where one digit does, whatever the rows beside need
        found.append((exponent, rest - above * 2.0**_BITS))
        rest, exponent, most = above, exponent + _BITS, most * 2.0**-_BITS
    return [*found, (exponent, rest)]


class GramSums:
    """Sums over the rows of a fold, by arm, of v z z^T and v z y^T, with z = (1, x), v the weight and y t targets.

    Sums of y and the number of rows are kept without weights, for all arms together.
    """

    def __init__(self, *, arms: int, targets: int, scales: Scales) -> None:
        self.scales, self.targets = scales, targets
        self.features = len(scales)
        self.rows = 0
        self._total = WholeSums(targets)
        #: of v, then v y; then their products with x; then x x^T
        self._plain = WholeSums(arms, 1 + targets)
        self._cross = WholeSums(arms, 1 + targets, self.features)
        self._square = WholeSums(arms, self.features, self.features)

    def add(self, features: Matrix | None, *, arm: int, targets: Matrix, weights: Vector | None) -> None:
        """Take in rows of an arm: features (m, d), targets (m, t), weights (m,), m <= ROWS."""
        assert len(targets) <= ROWS
        for sums in self.parts:
            sums.count(len(targets))
        self.rows += len(targets)
        for exponent, wholes in digits(targets, bits=DIGIT, aligned=True):
            self._total.add(exponent, wholes.sum(axis=0))
        root = np.ones(len(targets)) if weights is None else np.sqrt(weights)
        beside = np.concatenate([np.ones((len(targets), 1)), targets], axis=1)  # (m, 1 + t)
        for exponent, wholes in digits(beside * (root * root)[:, None], bits=DIGIT, aligned=True):
            self._plain.add(exponent, wholes.sum(axis=0), where=arm)
        if features is None:
            return
        for shift, rows in _sizes(root):
            near = np.ldexp(root[rows], -shift)[:, None]
            x = _digits(features[rows] * near, scales=self.scales)
            self._add_features([(exponent + shift, wholes) for exponent, wholes in x], arm=arm)
            self._add_cross(x, arm=arm, beside=beside[rows] * near, shift=2 * shift)

    def _add_features(self, x: list[tuple[int, Matrix]], *, arm: int) -> None:
        (lowest, low), *higher = x
        for place, (exponent, wholes) in enumerate(higher):
            self._square.add(2 * exponent, wholes.T @ wholes, where=arm)
            for other, beneath in [*higher[:place], (lowest, low)]:
                mixed = wholes.T @ beneath
                self._square.add(exponent + other, mixed + mixed.T, where=arm)

    def _add_cross(self, x: list[tuple[int, Matrix]], *, arm: int, beside: Matrix, shift: int) -> None:
        for unit, targets in digits(beside, bits=DIGIT, aligned=True):
            for exponent, wholes in x:
                self._cross.add(unit + exponent + shift, targets.T @ wholes, where=arm)

    def absorb(self, other: "GramSums") -> None:
        """Take in all rows of another. Raises InvalidInput for one of other columns, or with other scales."""
        if not np.array_equal(self.scales, other.scales) or self.targets != other.targets:
            raise InvalidInput("of another log", field="features", remedy="give all parts of a log the same scales")
        self.rows += other.rows
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.absorb(theirs)

    @property
    def parts(self) -> tuple[WholeSums, ...]:
        """All of its sums."""
        return self._total, self._plain, self._cross, self._square

    @property
    def total(self) -> Vector:
        """Sum of y, shape (t,)."""
        return self._total.value

    @property
    def gram(self) -> Matrix:
        """Sums of v z z^T, shape (K, d+1, d+1)."""
        plain, cross = self._plain.value, np.ldexp(self._cross.value, self.scales)
        found = np.empty((len(plain), self.features + 1, self.features + 1))
        found[:, 0, 0] = plain[:, 0]
        found[:, 1:, 1:] = np.ldexp(self._square.value, self.scales[:, None] + self.scales)
        found[:, 0, 1:] = found[:, 1:, 0] = cross[:, 0]
        return found

    @property
    def moment(self) -> Matrix:
        """Sums of v z y^T, shape (K, d+1, t)."""
        plain, cross = self._plain.value, np.ldexp(self._cross.value, self.scales)
        return np.concatenate([plain[:, None, 1:], cross[:, 1:].transpose(0, 2, 1)], axis=1)


def _sizes(root: Vector) -> Iterator[tuple[int, slice | Choices]]:
    """(exponent, the rows of about this size), so that light rows keep as many digits as heavy ones; not those of 0."""
    if (root == 1.0).all():
        yield 0, slice(None)
        return
    exponents = np.frexp(root)[1]
    for exponent in np.unique(exponents[root > 0.0]):
        yield int(exponent), np.flatnonzero((exponents == exponent) & (root > 0.0))


def applied(coefficients: Matrix, *, features: Matrix, scales: Scales) -> Matrix:
    """Predictions (m, K, t) of rows x (m, d) by coefficients (K, d+1, t), the same whatever stands beside a row.

    Coefficients are rounded to 36 bits of the largest of their arm and target; products are of whole numbers.
    """
    arms, size, targets = coefficients.shape
    slopes = coefficients[:, 1:].transpose(1, 0, 2).reshape(size - 1, arms * targets)
    slopes = np.ldexp(slopes, scales[:, None])
    largest = np.frexp(np.abs(slopes).max(axis=0, initial=0.0))[1]
    scaled = np.ldexp(slopes, _SLOPE - largest)
    high = np.rint(scaled)
    low = np.rint((scaled - high) * 2.0**_SLOPE)
    found = np.zeros((len(features), arms * targets))
    for start in range(0, size - 1, _WIDTH):
        place = slice(start, start + _WIDTH)
        for exponent, wholes in _digits(features[:, place], scales=scales[place]):
            # Products of whole numbers, and so exact; what is done with them is rounded in every row by itself.
            sums = wholes @ high[place] + (wholes @ low[place]) * 2.0**-_SLOPE
            found += np.ldexp(sums, exponent + largest - _SLOPE)
    return np.asarray(found.reshape(len(features), arms, targets) + coefficients[:, 0])


def row_groups(groups: Choices) -> Iterator[tuple[int, Choices]]:
    """(group, its rows), ROWS of them at a time; groups (n,) are whole numbers from 0."""
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups)).tolist()
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        for first in range(start, stop, ROWS):
            yield group, order[first : min(first + ROWS, stop)]
