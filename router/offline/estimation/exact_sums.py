"""Sums that come out the same, to the last bit, however the rows are cut, ordered and merged, and on every processor.

A float64 is a whole number times a power of two. Numbers are taken apart into digits of a few bits, whole numbers so
small that float64 adds (and BLAS multiplies and adds) a block of them without rounding: the order of the additions, the
instructions of the processor and the number of threads cannot matter. Across blocks the sums are whole numbers of
Python, or of 64 bits. Rounding happens before the sum, in every row by itself, and after it, once. (Ozaki et al. 2012
use the same splitting for matrix products; Demmel and Nguyen 2015 for sums.)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ragbandit.router.offline.types import Matrix, Vector

__all__ = ["BLOCK", "DIGIT", "ExactProducts", "ExactSums", "WholeSums", "added_arms", "digits"]

#: rows at a time, and bits of a digit: BLOCK products of two digits stay below 2^53
BLOCK, DIGIT = 1 << 13, 19
#: bits of a digit that is only added
_LONG = 38
#: columns that are added at a time
_COLUMNS = 32
#: what is smaller than 2^-LEAST of a number counts as nothing
_LEAST = 300
#: rows that are added to a sum of 64 bits before it is carried, 2^42 of each, and the bits that stay
_MOST_ROWS, _CARRY = 1 << 20, 32

Wholes = npt.NDArray[np.int64]


def digits(values: Matrix, *, bits: int, aligned: bool = False) -> Iterator[tuple[int, Matrix]]:
    """(exponent, whole numbers of at most so many bits), whose sum of wholes * 2^exponent is the values.

    values: finite, any shape. aligned: exponents are multiples of `bits`, so that a number has the same digits
    whatever stands beside it. Raises ValueError for values that are not finite.
    """
    most = float(np.abs(values).max(initial=0.0))
    if not math.isfinite(most):
        raise ValueError("a sum of numbers that are not finite")
    exponent, floor = math.frexp(most)[1] - bits, -_LEAST
    if aligned:
        exponent, floor = -(-exponent // bits) * bits, -(_LEAST // bits) * bits
    exponent, rest = max(exponent, floor), values.copy()
    while most:
        found = rest * 2.0**-exponent
        np.trunc(found, out=found)
        rest -= found * 2.0**exponent
        yield exponent, found
        if exponent == floor:  # the same for all values, so that what is left out does not depend on the rows beside
            return
        most, exponent = float(rest.any()), max(exponent - bits, floor)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactSums:
    """Sums of k columns over the rows of a log."""

    #: in units of 2^-LEAST
    units: tuple[int, ...] = ()

    @classmethod
    def of(cls, *columns: Vector) -> "ExactSums":
        """The sums of these columns, each of shape (n,)."""
        units = [0] * len(columns)
        for first, rows in product(range(0, len(columns), _COLUMNS), _blocks(len(columns[0]))):
            block = np.array([column[rows] for column in columns[first : first + _COLUMNS]])
            for exponent, wholes in digits(block, bits=_LONG):
                for place, total in enumerate(wholes.sum(axis=1).tolist(), start=first):
                    units[place] += int(total) << (exponent + _LEAST)
        return cls(units=tuple(units))

    def merged(self, other: "ExactSums") -> "ExactSums":
        """The sums over both sets of rows; an empty one is that of no rows."""
        if not self.units or not other.units:
            return self if self.units else other
        return ExactSums(units=tuple(a + b for a, b in zip(self.units, other.units, strict=True)))

    @property
    def values(self) -> Vector:
        """The sums, each rounded once, shape (k,)."""
        return np.array([_nearest(unit, 1 << _LEAST) for unit in self.units])


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactProducts:
    """Sums of k columns and of the products of every two of them."""

    rows: int
    #: in units of 2^-LEAST, shape (k,)
    sums: npt.NDArray[np.object_]
    #: in units of 2^(-2 LEAST), shape (k, k)
    products: npt.NDArray[np.object_]

    @classmethod
    def of(cls, *columns: Vector) -> "ExactProducts":
        """Those of these columns, each of shape (n,)."""
        count = len(columns)
        sums, products = np.zeros(count, dtype=np.object_), np.zeros((count, count), dtype=np.object_)
        for rows in _blocks(len(columns[0])):
            parts = list(digits(np.array([column[rows] for column in columns]), bits=DIGIT))
            used = [np.flatnonzero(part.any(axis=1)) for _, part in parts]
            if not parts:
                continue
            stacked = np.concatenate([part[place] for (_, part), place in zip(parts, used, strict=True)])
            gram = stacked @ stacked.T
            ends = np.cumsum([0, *map(len, used)])
            for a, (exponent, part) in enumerate(parts):
                sums += _units(part.sum(axis=1), exponent + _LEAST)
                for b, (other, _) in enumerate(parts):
                    block = gram[ends[a] : ends[a + 1], ends[b] : ends[b + 1]]
                    products[np.ix_(used[a], used[b])] += _units(block, exponent + other + 2 * _LEAST)
        return cls(rows=len(columns[0]), sums=sums, products=products)

    def merged(self, other: "ExactProducts") -> "ExactProducts":
        """Those of both sets of rows together."""
        return ExactProducts(
            rows=self.rows + other.rows, sums=self.sums + other.sums, products=self.products + other.products
        )

    @property
    def mean(self) -> Vector:
        """Mean of every column, rounded once; zeros where there are no rows."""
        whole = max(self.rows, 1) << _LEAST
        return np.array([_nearest(int(total), whole) for total in self.sums])

    @property
    def scatter(self) -> Matrix:
        """Sum over the rows of (z - mean)(z - mean)^T, rounded once, shape (k, k)."""
        rows = max(self.rows, 1)
        apart = rows * self.products - np.outer(self.sums, self.sums)
        whole = rows << (2 * _LEAST)
        return np.array([[_nearest(int(total), whole) for total in row] for row in apart]).reshape(apart.shape)


class WholeSums:
    """Sums of arrays of whole numbers times powers of two: exponent -> whole numbers of 64 bits, and their carry."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        #: rows since the last carry
        self.rows = 0
        self.low: dict[int, Wholes] = {}
        #: in units 2^32 times as large
        self.high: dict[int, Wholes] = {}

    def add(self, exponent: int, wholes: Matrix, *, where: Any = ...) -> None:
        """Add whole numbers below 2^53 at a place of the array; tell `count` first."""
        if exponent not in self.low:
            self.low[exponent] = np.zeros(self.shape, dtype=np.int64)
        self.low[exponent][where] += wholes.astype(np.int64)

    def count(self, rows: int) -> None:
        """So many rows will be added, at most 2^42 of each."""
        self.rows += rows
        if self.rows > _MOST_ROWS:
            for exponent, low in self.low.items():
                self._put(self.high, exponent, low >> _CARRY)
                low &= (1 << _CARRY) - 1
            self.rows = rows

    def absorb(self, other: "WholeSums") -> None:
        """Take in another sum."""
        self.count(other.rows)
        for mine, theirs in ((self.low, other.low), (self.high, other.high)):
            for exponent, wholes in theirs.items():
                self._put(mine, exponent, wholes)

    @property
    def value(self) -> Matrix:
        """The sum as float64, the same whatever was added in which order."""
        found = np.zeros(self.shape)
        for exponent in sorted(self.low):
            low = self.low[exponent]
            carried = (low + (1 << (_CARRY - 1))) >> _CARRY  # rounded, so that the two parts do not cancel
            high = carried + self.high.get(exponent, 0)
            found += np.ldexp((low - (carried << _CARRY)).astype(np.float64), exponent)
            found += np.ldexp(np.asarray(high, dtype=np.float64), exponent + _CARRY)
        return found

    @staticmethod
    def _put(sums: dict[int, Wholes], exponent: int, wholes: Wholes) -> None:
        sums[exponent] = sums[exponent] + wholes if exponent in sums else wholes.copy()


def added_arms(values: Matrix) -> Vector:
    """The sum over the arms of every row, in their order whatever the processor; values (n, K), found (n,)."""
    found = np.zeros(len(values))
    for column in values.T:
        found += column
    return found


def _nearest(total: int, whole: int) -> float:
    """The quotient, rounded once; infinite where that is beyond float64, as it is for a sum of floats."""
    try:
        return total / whole
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK):
        yield slice(start, min(start + BLOCK, rows))


def _units(wholes: Matrix, by: int) -> npt.NDArray[np.object_]:
    """Whole numbers times 2^by, as numbers of Python."""
    return np.asarray(wholes.astype(np.int64).astype(np.object_) * (1 << by), dtype=np.object_)
