"""Mergeable moments (means and scatter of columns): the basis of every estimate and fixed-n interval.

A log that does not fit in memory, or on one machine, is read in pieces; the moments of the pieces, merged, are those of
the whole but for rounding (within 1e-9).
"""

from dataclasses import dataclass

import numpy as np

from ragbandit.router.offline.types import Matrix, Vector


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

    def combined(self, matrix: Matrix) -> "Moments":
        """The moments of the columns matrix @ z: linear combinations of these; matrix has shape (m, k)."""
        return Moments(rows=self.rows, mean=matrix @ self.mean, scatter=matrix @ self.scatter @ matrix.T)

    @property
    def covariance(self) -> Matrix:
        """Covariance of a row, unbiased (n - 1 in the denominator), shape (k, k); infinite variances below two rows."""
        if self.rows < 2:
            return np.diag(np.full(len(self.mean), np.inf))
        return self.scatter / (self.rows - 1)
