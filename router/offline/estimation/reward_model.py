"""The reward model of a replay: ridge regressions of reward, quality and cost on the features of questions."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import Log, folds_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import FeatureRows, Indices, Matrix

#: default penalty of `Ridge`, large because features of a question predict little of its reward
_PENALTY = 10.0
#: largest number of rows whose features are converted to float64 at a time
ROWS = 1 << 11


class Ridge:
    """Cross-fitted ridge regression per arm in closed form: call `add` for all rows, then `predict`.

    A reward model that predicts the rows it was fitted on gives intervals that are too narrow. So the rows are split
    into folds by question, and each fold is predicted by a model of the other folds (cross-fitting: Chernozhukov et
    al. 2018).

    With the features x of a question, the model of an arm is linear in z = (1, x). Without features it is the mean of
    the arm's rows and one prior row, which has the mean of all arms. penalty (> 0): strength of the prior on the
    coefficients of the features, see `_coefficients`.
    """

    def __init__(self, *, arms: int, folds: int, penalty: float = _PENALTY) -> None:
        self._arms, self._folds, self._penalty = arms, folds, penalty
        #: sums over each fold, with the t targets y of a row and its z = (1, d features): number of rows (folds,);
        #: y (folds, t); z z^T (folds, K, d+1, d+1); z y^T (folds, K, d+1, t). () before any row was added
        self.sums: tuple[Matrix, ...] = ()
        self._solved: dict[int, Matrix] = {}

    def add(self, features: FeatureRows | None, *, action: Indices, targets: Matrix, folds: Indices) -> None:
        """Add rows of a checked log: features (n, d) or None, action (n,), targets (n, t), folds (n,)."""
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
        both = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        pairs = zip(self.sums, other.sums, strict=True) if self.sums and other.sums else ()
        both.sums = tuple(first + second for first, second in pairs) or self.sums or other.sums
        return both

    def without_features(self) -> "Ridge":
        bare = Ridge(arms=self._arms, folds=self._folds, penalty=self._penalty)
        if self.sums:
            count, total, gram, moment = self.sums
            bare.sums = count, total, gram[:, :, :1, :1], moment[:, :, :1]
        return bare

    def solve(self) -> None:
        """Fit the model and drop the sums. Afterwards the model can only predict."""
        for fold in range(self._folds if self.sums else 0):
            if np.delete(self.sums[0], fold).any():
                self._coefficients(fold)
        self.sums = ()

    def predict(self, features: FeatureRows | None, *, folds: Indices) -> Matrix:
        """Predict each row by the model of the other folds, shape (n, K, t). Raises InvalidInput if those are empty."""
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
        """The coefficients of z for every arm, learned on all other folds, shape (K, d+1, t).

        Let y be the target of a row, and D_j the penalty of coefficient j: 1 for the intercept, and penalty x d x
        (mean of x_j^2) for feature j. The coefficients b minimise the sum of |y - mean of y - z b|^2 over the arm's
        rows, plus the sum of D_j b_j^2. Both means are over the rows of all arms. So the scale of the features does not
        matter, and an arm without rows predicts the mean of all rows.
        """
        if fold in self._solved:
            return self._solved[fold]
        counts = self.sums[0] if self.sums else np.zeros(self._folds)
        if not np.delete(counts, fold).any():
            if counts.sum() <= 1.0:
                message = "the log has fewer than two rows to judge: what a row would earn is learned from other rows"
                remedy = "replay when two decisions have feedback; imported rows are learned, and not judged"
                raise InvalidInput(message, field="log", remedy=remedy)
            remedy = "use a longer log, or a fixed model"
            message = f"no rows outside of fold {fold}: a model has nothing to learn"
            raise InvalidInput(message, field="folds", remedy=remedy)
        count, total, gram, moment = (np.delete(sums, fold, axis=0).sum(axis=0) for sums in self.sums)
        size, mean = gram.shape[1], total / count
        scale = np.sqrt(np.einsum("kii->i", gram) / count)
        scale[scale == 0.0] = 1.0  # a feature that is 0 in all rows gets the coefficient 0
        prior = np.diag([1.0, *[self._penalty * (size - 1)] * (size - 1)])
        centred = (moment - gram[:, :, :1] * mean) / scale[:, None]  # the first column of z is 1
        coefficients: Matrix = np.linalg.solve(gram / scale / scale[:, None] + prior, centred) / scale[:, None]
        coefficients[:, 0] += mean
        self._solved[fold] = coefficients
        return coefficients


def _row_groups(groups: Indices) -> Iterator[tuple[int, Indices]]:
    """Yield (group, indices of at most ROWS of its rows). groups: shape (n,), whole numbers from 0."""
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups)).tolist()
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        for first in range(start, stop, ROWS):
            yield group, order[first : min(first + ROWS, stop)]


@dataclass(kw_only=True)
class RewardModel:
    """The cross-fitted reward model of a log: a ridge per arm on the features, or the arms' means without features.

    It reads features if one encoder made the features of all rows.
    """

    folds: int
    ridge: Ridge | None = None
    #: (hash of the encoder, width) of the features that occurred; ("", 0) for rows without features
    kinds: frozenset[tuple[str, int]] = frozenset()

    def learn(self, log: Log) -> None:
        self.kinds |= {(log.encoder_hash, 0 if log.features is None else log.features.shape[1])}
        ridge = self.ridge or Ridge(arms=len(log.arms), folds=self.folds)
        self.ridge = ridge if self.has_features else ridge.without_features()
        targets = np.stack([log.reward, log.quality, log.cost], axis=1)
        features, folds = log.features if self.has_features else None, folds_of(log.questions, folds=self.folds)
        self.ridge.add(features, action=log.action, targets=targets, folds=folds)

    def merged(self, other: "RewardModel") -> "RewardModel":
        both = RewardModel(folds=self.folds, kinds=self.kinds | other.kinds)
        ridges = [model.ridge for model in (self, other) if model.ridge is not None]
        ridges = ridges if both.has_features else [ridge.without_features() for ridge in ridges]
        both.ridge = reduce(Ridge.merged, ridges) if ridges else None
        return both

    def solve(self) -> None:
        if self.ridge is not None:
            self.ridge.solve()

    def predict(self, log: Log) -> Matrix:
        """Rewards, qualities and costs of every arm, shape (3, n, K)."""
        assert self.ridge is not None, "a model predicts after it has learned"
        features, folds = log.features if self.has_features else None, folds_of(log.questions, folds=self.folds)
        return np.ascontiguousarray(np.moveaxis(self.ridge.predict(features, folds=folds), 2, 0))

    @property
    def has_features(self) -> bool:
        return len(self.kinds) == 1 and all(width for _, width in self.kinds)
