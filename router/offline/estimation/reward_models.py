"""Reward models for DM, DR and their variants: predictions for every arm, never from a model that saw the row.

A model that scores the rows it was fitted on makes an estimate that looks surer than it is. So the rows are dealt into
folds by their keys, and each fold is predicted by what was learned on the others (cross-fitting: Chernozhukov et al.
2018).

Targets have t columns (reward, quality, cost, say): they share what is costly.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ragbandit.router.offline.estimation import Choices, Keys
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Matrix

#: of every row, arm and target, shape (n, K, t)
Predictions = npt.NDArray[np.float64]
#: of the questions, shape (n, d)
FeatureRows = npt.NDArray[np.float32] | npt.NDArray[np.float64]

#: Prior rows of the features' weights: what the features of a question tell of its reward is little beside the noise.
_PENALTY = 10.0


def folds_of(keys: Keys, *, folds: int) -> Choices:
    """The fold of each row, shape (n,), in 0 ... folds - 1: of its key alone, in whatever piece or order it comes."""
    if folds < 2:
        raise InvalidInput(f"{folds!r} folds", field="folds", remedy="use 2 or more: one learns, another is predicted")
    return (keys % np.uint64(folds)).astype(np.intp)


#: rows whose features are made float64, and multiplied, at a time
ROWS = 1 << 11


class Ridge:
    """Cross-fitted ridge regression per arm, closed form, of logs that are read in pieces: add all, then predict.

    Linear in z = (1, x); without features the arm's mean, shrunk by one row's worth towards the mean of all arms.
    penalty: prior rows (> 0), in units of the features' mean squares and of 1 / d. Sums are kept per fold: of rows
    and of the targets y for all arms together, of z z^T and z y^T by arm.
    """

    def __init__(self, *, arms: int, folds: int, penalty: float = _PENALTY) -> None:
        self._arms, self._folds, self._penalty = arms, folds, penalty
        #: rows (folds,); y (folds, t); z z^T (folds, K, d+1, d+1); z y^T (folds, K, d+1, t); () before any row
        self.sums: tuple[npt.NDArray[np.float64], ...] = ()
        self._solved: dict[int, Matrix] = {}

    def add(self, features: FeatureRows | None, *, action: Choices, targets: Matrix, folds: Choices) -> None:
        """Take in rows: features (n, d) or None, action (n,), targets (n, t), folds (n,).

        The rows are a checked log's: nothing is checked here.
        """
        if not len(targets):
            return
        size, columns = 1 if features is None else 1 + features.shape[1], targets.shape[1]
        if not self.sums:
            shapes = ((), (columns,), (self._arms, size, size), (self._arms, size, columns))
            self.sums = tuple(np.zeros((self._folds, *shape)) for shape in shapes)
        self._solved.clear()
        count, total, gram, moment = self.sums
        for cell, rows in _row_groups(folds * self._arms + action):
            fold, arm = divmod(cell, self._arms)
            z = np.ones((len(rows), size))
            if features is not None:
                z[:, 1:] = features[rows]
            count[fold] += len(rows)
            total[fold] += targets[rows].sum(axis=0)
            gram[fold, arm] += z.T @ z
            moment[fold, arm] += z.T @ targets[rows]

    def merged(self, other: "Ridge") -> "Ridge":
        """The one that has learned the rows of both, which are of one log; neither is changed."""
        both = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        pairs = zip(self.sums, other.sums, strict=True) if self.sums and other.sums else ()
        both.sums = tuple(mine + theirs for mine, theirs in pairs) or self.sums or other.sums
        return both

    def without_features(self) -> "Ridge":
        """The one that has learned the same rows without their features; this one is not changed."""
        bare = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        if self.sums:
            count, total, gram, moment = self.sums
            bare.sums = count, total, gram[:, :, :1, :1], moment[:, :, :1]
        return bare

    def solve(self) -> None:
        """Fit, and forget the sums: what is left predicts, and is small."""
        for fold in range(self._folds if self.sums else 0):
            if np.delete(self.sums[0], fold).any():
                self._coefficients(fold)
        self.sums = ()

    def predict(self, features: FeatureRows | None, *, folds: Choices) -> Predictions:
        """Predictions for these rows from the other folds, shape (n, K, t). Raises InvalidInput without any."""
        predicted = np.empty((0, self._arms, self.sums[1].shape[1] if self.sums else 0))
        for fold, rows in _row_groups(folds):
            learned = self._coefficients(fold)  # (K, d+1, t)
            if not len(predicted):
                predicted = np.empty((len(folds), self._arms, learned.shape[2]))
            predicted[rows] = learned[:, 0]
            if features is not None:
                slopes = learned[:, 1:].transpose(1, 0, 2).reshape(features.shape[1], -1)  # (d, K t)
                predicted[rows] += (features[rows].astype(np.float64) @ slopes).reshape(len(rows), *predicted.shape[1:])
        return predicted

    def _coefficients(self, fold: int) -> Matrix:
        """The coefficients of z for every arm, learned on all folds but this, shape (K, d+1, t).

        Minimise the sum of |y - mean - z b|^2 + |b|^2 weighted by D: D of the intercept is 1, of feature j penalty d
        times the mean of x_j^2, means over the rows of all arms. So the scale of the features does not matter, and
        an arm without rows predicts the mean of all.
        """
        if fold in self._solved:
            return self._solved[fold]
        counts = self.sums[0] if self.sums else np.zeros(self._folds)
        if not np.delete(counts, fold).any():
            raise _no_others(fold, rows=int(counts.sum()))
        count, total, gram, moment = (np.delete(one, fold, axis=0).sum(axis=0) for one in self.sums)
        size, mean = gram.shape[1], total / count
        scale = np.sqrt(np.einsum("kii->i", gram) / count)
        scale[scale == 0.0] = 1.0  # such a feature is 0 everywhere, and so is its coefficient
        prior = np.diag([1.0, *[self._penalty * (size - 1)] * (size - 1)])
        apart = (moment - gram[:, :, :1] * mean) / scale[:, None]  # z's first column is 1
        found: Matrix = np.linalg.solve(gram / scale / scale[:, None] + prior, apart) / scale[:, None]
        found[:, 0] += mean
        self._solved[fold] = found
        return found


def _row_groups(groups: Choices) -> Iterator[tuple[int, Choices]]:
    """(group, its rows), ROWS of them at a time; groups (n,) are whole numbers from 0."""
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups)).tolist()
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        for first in range(start, stop, ROWS):
            yield group, order[first : min(first + ROWS, stop)]


def _no_others(fold: int, *, rows: int) -> InvalidInput:
    if rows == 1:
        what = "has one row: what a row would earn is learned from the other rows"
        return InvalidInput(what, field="log", remedy="replay a log of two rows or more")
    return InvalidInput(f"no rows outside of fold {fold}", field="folds", remedy="use a longer log, or a fixed model")
