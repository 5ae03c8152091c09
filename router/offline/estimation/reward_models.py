"""Reward models for DM, DR and their variants: predictions for every arm, never from a model that saw the row.

A model that scores the rows it was fitted on makes an estimate that looks surer than it is. So the rows are dealt into
folds by their keys, and each fold is predicted by what was learned on the others (cross-fitting: Chernozhukov et al.
2018); or, where the past must not know the future, each block of rows by all rows before it (`progressive`).

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


class RidgeSums:
    """Sums over the rows of a fold, by arm, of v z z^T and v z y^T, with z = (1, x), v the weight and y t targets.

    Sums of y and the number of rows are kept for all arms together.
    """

    def __init__(self, *, arms: int, features: int, targets: int) -> None:
        self.rows = 0
        #: of y, shape (t,)
        self.total = np.zeros(targets)
        #: of z z^T, shape (K, d+1, d+1)
        self.gram = np.zeros((arms, features + 1, features + 1))
        #: of z y^T, shape (K, d+1, t)
        self.moment = np.zeros((arms, features + 1, targets))

    @property
    def width(self) -> tuple[int, int]:
        """How many features and targets a row has."""
        return self.moment.shape[1] - 1, self.moment.shape[2]

    def add(self, features: Matrix | None, *, arm: int, targets: Matrix) -> None:
        """Take in rows of an arm: features (m, d), targets (m, t)."""
        one = np.ones((len(targets), 1))
        z = one if features is None else np.concatenate([one, features], axis=1)  # (m, d+1)
        self.rows += len(targets)
        self.total += targets.sum(axis=0)
        self.gram[arm] += z.T @ z
        self.moment[arm] += z.T @ targets

    def merged(self, other: "RidgeSums") -> "RidgeSums":
        """Those of both sets of rows; neither is changed."""
        both = RidgeSums(arms=len(self.gram), features=self.width[0], targets=self.width[1])
        both.rows, both.total = self.rows + other.rows, self.total + other.total
        both.gram, both.moment = self.gram + other.gram, self.moment + other.moment
        return both

    def without_features(self) -> "RidgeSums":
        """What the same rows give where no features are read; this one is not changed."""
        bare = RidgeSums(arms=len(self.gram), features=0, targets=self.width[1])
        bare.rows, bare.total = self.rows, self.total
        bare.gram, bare.moment = self.gram[:, :1, :1], self.moment[:, :1]
        return bare

    def solved(self, *, penalty: float) -> Matrix:
        """The coefficients of z = (1, x) for every arm, shape (K, d+1, t).

        Minimise the sum of |y - mean - z b|^2 + |b|^2 weighted by D: D of the intercept is 1, of feature j penalty d
        times the mean of x_j^2, means over the rows of all arms. So the scale of the features does not matter, and
        an arm without rows predicts the mean of all.
        """
        size, mean = self.gram.shape[1], self.total / self.rows
        scale = np.sqrt(np.einsum("kii->i", self.gram) / self.rows)
        scale[scale == 0.0] = 1.0  # such a feature is 0 everywhere, and so is its coefficient
        prior = np.diag([1.0, *[penalty * (size - 1)] * (size - 1)])
        coefficients = np.empty_like(self.moment)
        for arm, (gram, moment) in enumerate(zip(self.gram, self.moment, strict=True)):
            apart = (moment - gram[:, :1] * mean) / scale[:, None]  # z's first column is 1
            coefficients[arm] = np.linalg.solve(gram / scale / scale[:, None] + prior, apart) / scale[:, None]
        coefficients[:, 0] += mean
        return coefficients


class Ridge:
    """Cross-fitted ridge regression per arm, closed form, of logs that are read in pieces: add all, then predict.

    Linear in (1, x); without features the arm's mean, shrunk by one row's worth towards the mean of all arms. penalty:
    prior rows (> 0), in units of the features' mean squares and of 1 / d.
    """

    def __init__(self, *, arms: int, folds: int, penalty: float = _PENALTY) -> None:
        self._arms, self._folds, self._penalty = arms, folds, penalty
        #: per fold
        self.sums: list[RidgeSums] = []
        self._solved: dict[int, Matrix] = {}

    def add(
        self,
        features: FeatureRows | None,
        *,
        action: Choices,
        targets: Matrix,
        folds: Choices,
    ) -> None:
        """Take in rows: features (n, d) or None, action (n,), targets (n, t), folds (n,).

        The rows are a checked log's: nothing is checked here.
        """
        if not len(targets):
            return
        size, columns = 0 if features is None else features.shape[1], targets.shape[1]
        if not self.sums:
            self.sums = [RidgeSums(arms=self._arms, features=size, targets=columns) for _ in range(self._folds)]
        self._solved.clear()
        for cell, rows in _row_groups(folds * self._arms + action):
            self.sums[cell // self._arms].add(
                None if features is None else features[rows].astype(np.float64),
                arm=cell % self._arms,
                targets=targets[rows],
            )

    def merged(self, other: "Ridge") -> "Ridge":
        """The one that has learned the rows of both, which are of one log; neither is changed."""
        both = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        if self.sums and other.sums:
            both.sums = [mine.merged(theirs) for mine, theirs in zip(self.sums, other.sums, strict=True)]
        else:
            both.sums = self.sums or other.sums
        return both

    def without_features(self) -> "Ridge":
        """The one that has learned the same rows without their features; this one is not changed."""
        bare = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        bare.sums = [sums.without_features() for sums in self.sums]
        return bare

    def solve(self) -> None:
        """Fit, and forget the sums: what is left predicts, and is small."""
        for fold in range(self._folds):
            if any(sums.rows for other, sums in enumerate(self.sums) if other != fold):
                self._coefficients(fold)
        self.sums = []

    def predict(self, features: FeatureRows | None, *, folds: Choices) -> Predictions:
        """Predictions for these rows from the other folds, shape (n, K, t). Raises InvalidInput without any."""
        predicted = np.empty((0, self._arms, self.sums[0].width[1] if self.sums else 0))
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
        """Learned on all folds but this, shape (K, d+1, t)."""
        if fold not in self._solved:
            others = [sums for other, sums in enumerate(self.sums) if other != fold]
            if not any(sums.rows for sums in others):
                raise _no_others(fold, rows=sum(sums.rows for sums in self.sums))
            whole, *rest = others
            for sums in rest:
                whole = whole.merged(sums)
            self._solved[fold] = whole.solved(penalty=self._penalty)
        return self._solved[fold]


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
