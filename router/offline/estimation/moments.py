"""Mergeable moments (means and scatter of columns): the basis of every estimate and fixed-n interval.

A log that does not fit in memory, or on one machine, is read in pieces; the moments of the pieces, merged, are those of
the whole to the last bit: sums and products are added exactly (`exact_sums`), and rounded when they are read.
"""

from dataclasses import dataclass

import numpy as np

from ragbandit.router.offline.estimation.exact_sums import ExactProducts
from ragbandit.router.offline.types import Matrix, Vector

__all__ = ["Moments"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Moments of n rows with k columns."""

    rows: int
    #: shape (k,); zeros where there are no rows
    mean: Vector
    #: sum over the rows of (z - mean)(z - mean)^T, shape (k, k)
    scatter: Matrix
    #: the exact sums that mean and scatter are of; None for combinations, which are not merged
    exact: ExactProducts | None = None

    @classmethod
    def of(cls, *columns: Vector) -> "Moments":
        """The moments of these columns, each of shape (n,)."""
        if not all(np.isfinite(column).all() for column in columns):
            unknown = np.full(len(columns), np.nan)
            return cls(rows=len(columns[0]), mean=unknown, scatter=np.outer(unknown, unknown))
        return cls._rounded(ExactProducts.of(*columns))

    @classmethod
    def _rounded(cls, exact: ExactProducts) -> "Moments":
        return cls(rows=exact.rows, mean=exact.mean, scatter=exact.scatter, exact=exact)

    def merged(self, other: "Moments") -> "Moments":
        """The moments of both sets of rows together; NaN where a column of one is not finite, or has been combined."""
        if self.exact is None or other.exact is None:
            rows = self.rows + other.rows
            return Moments(rows=rows, mean=self.mean * np.nan, scatter=self.scatter * np.nan)
        return self._rounded(self.exact.merged(other.exact))

    def combined(self, matrix: Matrix) -> "Moments":
        """The moments of the columns matrix @ z: linear combinations of these; matrix has shape (m, k)."""
        return Moments(rows=self.rows, mean=matrix @ self.mean, scatter=matrix @ self.scatter @ matrix.T)

    @property
    def covariance(self) -> Matrix:
        """Covariance of a row, unbiased (n - 1 in the denominator), shape (k, k); infinite variances below two rows."""
        if self.rows < 2:
            return np.diag(np.full(len(self.mean), np.inf))
        return self.scatter / (self.rows - 1)
