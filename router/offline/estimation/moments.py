"""Mergeable moments (means and scatter of columns): the basis of every estimate and fixed-n interval.

A log that does not fit in memory, or on one machine, is read in pieces; the moments of the pieces, merged, are those of
the whole but for rounding (within 1e-9).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragbandit.router.offline.types import Matrix, Vector

#: multiplications in one product: larger ones OpenBLAS spreads over threads, which wait for each other
_PRODUCT = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Moments of n rows with k columns."""

    rows: int
    #: shape (k,); zeros where there are no rows
    mean: Vector
    #: sum over the rows of (z - mean)(z - mean)^T, shape (k, k)
    scatter: Matrix

    @classmethod
    def of(cls, *columns: Vector) -> "Moments":
        """The moments of these columns, each of shape (n,); NaN where a number is not finite."""
        values = np.stack(columns)
        width, rows = values.shape
        if rows == 0:
            return cls(rows=0, mean=np.zeros(width), scatter=np.zeros((width, width)))
        mean = values.mean(axis=1)
        values -= mean[:, None]
        scatter, step = np.zeros((width, width)), max(_PRODUCT // width**2, 32)
        for start in range(0, rows, step):
            block = values[:, start : start + step]
            scatter += block @ block.T
        return cls(rows=rows, mean=mean, scatter=scatter)

    def merged(self, other: "Moments") -> "Moments":
        """The moments of both sets of rows together (Chan, Golub and LeVeque 1983)."""
        rows = self.rows + other.rows
        if 0 in (self.rows, other.rows):
            return other if self.rows == 0 else self
        step = other.mean - self.mean
        return Moments(
            rows=rows,
            mean=self.mean + step * (other.rows / rows),
            scatter=self.scatter + other.scatter + np.outer(step, step) * (self.rows * other.rows / rows),
        )

    def part(self, columns: Sequence[int]) -> "Moments":
        """The moments of these columns, in this order."""
        return Moments(rows=self.rows, mean=self.mean[columns], scatter=self.scatter[np.ix_(columns, columns)])

    def combined(self, matrix: Matrix) -> "Moments":
        """The moments of the columns matrix @ z: linear combinations of these; matrix has shape (m, k)."""
        return Moments(rows=self.rows, mean=matrix @ self.mean, scatter=matrix @ self.scatter @ matrix.T)

    @property
    def covariance(self) -> Matrix:
        """Covariance of a row, unbiased (n - 1 in the denominator), shape (k, k); infinite variances below two rows."""
        if self.rows < 2:
            return np.diag(np.full(len(self.mean), np.inf))
        return self.scatter / (self.rows - 1)
