"""Mergeable moments (means and scatter of columns): the basis of every estimate and fixed-n interval.

A log that does not fit in memory, or on one machine, is read in pieces; the moments of the pieces, merged, are those of
the whole; to the last bit where they were made `exactly`: sums and products are then added without rounding.
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
    #: the exact sums that mean and scatter are of, where they were asked for
    exact: ExactProducts | None = None

    @classmethod
    def of(cls, *columns: Vector) -> "Moments":
        """The moments of these columns, each of shape (n,), as float64 rounds them: of arrays that are in one place."""
        width, rows = len(columns), len(columns[0])
        if rows == 0:
            return cls(rows=0, mean=np.zeros(width), scatter=np.zeros((width, width)))
        mean = np.array([column.mean() for column in columns])
        apart = [column - centre for column, centre in zip(columns, mean, strict=True)]
        scatter = np.empty((width, width))
        for i in range(width):
            for j in range(i + 1):
                # Not `@`: on long vectors that starts threads, which wait for each other on a busy machine.
                scatter[i, j] = scatter[j, i] = np.einsum("n,n->", apart[i], apart[j])
        return cls(rows=rows, mean=mean, scatter=scatter)

    @classmethod
    def exactly(cls, *columns: Vector) -> "Moments":
        """The moments of these columns, for logs in parts: merged, they have every bit of the moments of the whole."""
        if not all(np.isfinite(column).all() for column in columns):
            unknown = np.full(len(columns), np.nan)
            return cls(rows=len(columns[0]), mean=unknown, scatter=np.outer(unknown, unknown))
        return cls._rounded(ExactProducts.of(*columns))

    @classmethod
    def _rounded(cls, exact: ExactProducts) -> "Moments":
        return cls(rows=exact.rows, mean=exact.mean, scatter=exact.scatter, exact=exact)

    def merged(self, other: "Moments") -> "Moments":
        """The moments of both sets of rows together; exact where both are (Chan, Golub and LeVeque 1983 where not)."""
        if self.exact is not None and other.exact is not None:
            return self._rounded(self.exact.merged(other.exact))
        rows = self.rows + other.rows
        if 0 in (self.rows, other.rows):
            return other if self.rows == 0 else self
        step = other.mean - self.mean
        return Moments(
            rows=rows,
            mean=self.mean + step * (other.rows / rows),
            scatter=self.scatter + other.scatter + np.outer(step, step) * (self.rows * other.rows / rows),
        )

    def combined(self, matrix: Matrix) -> "Moments":
        """The moments of the columns matrix @ z: linear combinations of these; matrix has shape (m, k)."""
        return Moments(rows=self.rows, mean=matrix @ self.mean, scatter=matrix @ self.scatter @ matrix.T)

    @property
    def covariance(self) -> Matrix:
        """Covariance of a row, unbiased (n - 1 in the denominator), shape (k, k); infinite variances below two rows."""
        if self.rows < 2:
            return np.diag(np.full(len(self.mean), np.inf))
        return self.scatter / (self.rows - 1)
