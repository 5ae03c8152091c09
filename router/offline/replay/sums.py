"""What a replay sums: in the first pass the summary of a log and the reward model, in the second the moments of the
estimates.

Everything is a sum over rows, so that a log of any length gives the numbers of the same log in memory. The scores of a
row, of all candidates and estimators and of the logged policy, are the columns of one matrix: its moments give every
estimate, and every difference with the error that a paired comparison has.

A reward model that scores the rows it was fitted on makes an estimate that looks surer than it is. So the rows are
dealt into folds by their questions, and each fold is predicted by what was learned on the others (cross-fitting:
Chernozhukov et al. 2018).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from ragbandit.router.offline.estimation import Choices, Estimator, Keys, Moments, Strings, Tally, terms
from ragbandit.router.offline.estimation.bandit_log import BY_TEXT, ArmTally, Log, WeightTally
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, FeatureRows, Matrix, Vector

#: prior rows of the features' weights: what the features of a question tell of its reward is little beside the noise
_PENALTY = 10.0
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
        self.sums: tuple[Matrix, ...] = ()
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

    def predict(self, features: FeatureRows | None, *, folds: Choices) -> Matrix:
        """Matrix for these rows from the other folds, shape (n, K, t). Raises InvalidInput without any."""
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


@dataclass(kw_only=True)
class RewardModel:
    """The cross-fitted reward model of a plan. Features are read where all rows have them, by one encoder."""

    plan: Plan
    #: None: no row was learned yet
    ridge: Ridge | None = None
    #: encoder and width of the rows' features, ("", 0) without any
    kinds: frozenset[tuple[str, int]] = frozenset()

    def learn(self, log: Log) -> None:
        """Take in some rows."""
        self.kinds |= {(log.encoder_hash, 0 if log.features is None else log.features.shape[1])}
        ridge = self.ridge or Ridge(arms=len(log.arms), folds=self.plan.folds)
        self.ridge = ridge if self.reads_features else ridge.without_features()
        targets = np.stack([log.reward, log.quality, log.cost], axis=1)
        self.ridge.add(self._read(log), action=log.action, targets=targets, folds=self.plan.folds_in(log))

    def merged(self, other: "RewardModel") -> "RewardModel":
        """What both have learned."""
        both = RewardModel(plan=self.plan, kinds=self.kinds | other.kinds)
        for ridge in (self.ridge, other.ridge):
            if ridge is not None:
                ridge = ridge if both.reads_features else ridge.without_features()
                both.ridge = ridge if both.ridge is None else both.ridge.merged(ridge)
        return both

    def solve(self) -> None:
        """Fit; what is left is small, and predicts."""
        if self.ridge is not None:
            self.ridge.solve()

    def predicted(self, log: Log) -> Matrix:
        """Rewards, qualities and costs of every arm, shape (3, n, K)."""
        assert self.ridge is not None, "it is asked once it has learned"
        predicted = self.ridge.predict(self._read(log), folds=self.plan.folds_in(log))
        return np.ascontiguousarray(np.moveaxis(predicted, 2, 0))

    @property
    def reads_features(self) -> bool:
        """Whether all rows have features, by one encoder, and the plan wants them read."""
        return self.plan.reward_model != "mean" and self.has_features

    @property
    def has_features(self) -> bool:
        """Whether all rows have features, by one encoder."""
        return len(self.kinds) == 1 and all(width for _, width in self.kinds)

    def _read(self, log: Log) -> FeatureRows | None:
        return log.features if self.reads_features else None


#: segments of a field that are shown, the largest ones
MOST_SEGMENTS = 12
OTHERS = "others"
#: self-normalised estimators, made of the terms of another one
_SAME_TERMS = {"snips": "ips", "sndr": "dr"}


def _each_merged(ours: list[WeightTally], theirs: list[WeightTally]) -> list[WeightTally]:
    return [mine.merged(other) for mine, other in zip(ours, theirs, strict=True)]


_LEAST: Final = {"merge": np.minimum}
_MOST: Final = {"merge": np.maximum}


@dataclass(kw_only=True)
class LogSummary(Tally):
    """Summary statistics of a log, from the first pass."""

    rows: int = 0
    #: the arms, in the order of the columns
    names: tuple[ArmName, ...] = field(default=(), metadata={"merge": lambda ours, theirs: ours or theirs})
    #: of the rows that have a time
    begin: float = field(default=np.inf, metadata=_LEAST)
    end: float = field(default=-np.inf, metadata=_MOST)
    minimum: float = field(default=np.inf, metadata=_LEAST)
    maximum: float = field(default=-np.inf, metadata=_MOST)
    #: least and largest reward, quality and cost, shape (3,)
    least: Vector = field(default_factory=lambda: np.full(3, np.inf), metadata=_LEAST)
    most: Vector = field(default_factory=lambda: np.full(3, -np.inf), metadata=_MOST)
    arms: ArmTally = field(default_factory=ArmTally)
    #: rows that offered each arm, shape (K,)
    offered: Choices = field(default_factory=lambda: np.zeros(1, dtype=np.intp))
    weights: list[WeightTally] = field(default_factory=list, metadata={"merge": _each_merged})
    defaulted: int = 0
    late: int = 0
    raw: int = 0
    #: rewards that a judge made
    judged: int = 0
    #: keys of the ids, and of the texts that are known, each once; one array per batch
    keys: list[Keys] = field(default_factory=list)
    texts: list[Keys] = field(default_factory=list)
    #: rows by how their question is known, shape (3,)
    known_by: Choices = field(default_factory=lambda: np.zeros(3, dtype=np.intp))
    #: field -> value -> rows
    fields: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, log: Log) -> None:
        """Take in some rows."""
        self.rows, self.names = self.rows + len(log), log.arms
        known = log.made_at[log.made_at != 0.0]  # 0 is how a log says that it does not know the time
        self.begin = min(self.begin, float(known.min(initial=np.inf)))
        self.end = max(self.end, float(known.max(initial=-np.inf)))
        self.minimum, self.maximum = min(self.minimum, log.minimum), max(self.maximum, log.maximum)
        amounts = np.stack([log.reward, log.quality, log.cost])
        self.least, self.most = np.minimum(self.least, amounts.min(axis=1)), np.maximum(self.most, amounts.max(axis=1))
        self.arms.add(log)
        for tally, pmf in zip(self.weights, log.candidates, strict=True):
            tally.add(log, candidate=pmf)
        self.defaulted += int(log.defaulted.sum())
        self.late += int(log.late.sum())
        self.raw += int(log.raw.sum())
        self.judged += 0 if log.judged is None else int(log.judged.sum())
        self.offered = self.offered + log.offered.sum(axis=0)
        self.keys.append(log.keys)
        self.texts.append(np.unique(log.questions[log.known_by == BY_TEXT]))
        self.known_by = self.known_by + np.bincount(log.known_by, minlength=3)
        for name, values in log.fields.items():
            self.fields.setdefault(name, Counter()).update(values.tolist())

    @property
    def different_texts(self) -> int:
        """How many questions are different, of the rows that have their text."""
        return len(np.unique(np.concatenate(self.texts))) if self.texts else 0

    def bounds(self, target: int) -> tuple[float, float]:
        """Range of the reward (as declared), the quality ([0, 1] and what was seen) or cost (0 to what was seen)."""
        low, high = float(self.least[target]), float(self.most[target])
        if target == 0:
            return min(self.minimum, low), max(self.maximum, high)
        return (min(0.0, low), max(1.0, high)) if target == 1 else (min(0.0, low), high)

    @property
    def middles(self) -> list[float]:
        """Middles of the ranges of reward, quality and cost."""
        return [sum(self.bounds(target)) / 2.0 for target in range(3)]


@dataclass(frozen=True, kw_only=True)
class ScoreColumns:
    """The columns of a row's scores: of each candidate its weight, then (correction, baseline) of the reward, the
    quality and the cost by its estimator, and of the reward by the others; last the logged reward, quality and cost.
    """

    estimator: Estimator
    #: how many there are
    candidates: int
    #: names of those that are shown beside
    others: Sequence[str]
    #: of the ranges of the reward, the quality and the cost
    middles: Sequence[float]

    @cached_property
    def beside(self) -> list[str]:
        """The others with terms of their own."""
        names = dict.fromkeys(_SAME_TERMS.get(name, name) for name in self.others)
        return [name for name in names if name != self._main]

    @property
    def _main(self) -> str:
        return _SAME_TERMS.get(self.estimator.name, self.estimator.name)

    @property
    def _width(self) -> int:
        return 7 + 2 * len(self.beside)

    def of(self, candidate: int, *, target: int = 0, other: str | None = None) -> list[int]:
        """Weight, correction and baseline of a candidate; other: of its reward by another estimator."""
        start = candidate * self._width
        name = self._main if other is None else _SAME_TERMS.get(other, other)
        pair = start + 1 + 2 * (target if name == self._main else 3 + self.beside.index(name))
        return [start, pair, pair + 1]

    def logged(self, target: int) -> int:
        """The column of what was logged."""
        return self.candidates * self._width + target

    def matrix(self, log: Log, *, model: RewardModel) -> Matrix:
        """The scores of some rows, shape (columns, n).

        Unsupported actions (logged probability 0) are imputed with the midpoint of the range; the bias is at most
        range / 2 x unsupported mass. That mass, added to the weight, makes its mean 1.
        """
        estimators = [Estimator(name=name) for name in (self._main, *self.beside)]
        modelled = any(one.needs_model for one in estimators)
        predicted = model.predicted(log) if modelled else np.zeros((3, 1, 1))
        targets = log.reward, log.quality, log.cost
        scores = np.empty((self.logged(3), len(log)))
        for index, pmf in enumerate(log.candidates):
            unsupported = (log.pmf <= 0.0) & (pmf > 0.0)
            imputed, mass = predicted, np.zeros(len(log))
            if unsupported.any():
                imputed = np.where(unsupported, np.reshape(self.middles, (3, 1, 1)), predicted)
                mass = np.where(unsupported, pmf, 0.0).sum(axis=1)
            for estimator in estimators:
                needs = estimator.needs_model
                for target in range(3 if estimator is estimators[0] else 1):
                    weight, correction, baseline = terms(
                        estimator,
                        reward=targets[target],
                        action=log.action,
                        logged=log.pmf,
                        candidate=pmf,
                        predicted=imputed[target] if needs else None,
                    )
                    columns = self.of(index, target=target, other=estimator.name)
                    scores[columns] = weight + mass, correction, baseline if needs else mass * self.middles[target]
        scores[self.logged(0) :] = targets
        return scores


@dataclass(kw_only=True)
class ScoreSums(Tally):
    """Moments of the scores, from the second pass."""

    whole: Moments
    #: field -> value -> its rows
    segments: dict[str, dict[str, Moments]]

    @classmethod
    def empty(cls, segments: dict[str, list[str]]) -> "ScoreSums":
        """Of no rows. segments: field -> the values that get a segment of their own, OTHERS among them."""
        nothing = Moments.of(*np.empty((1, 0)))
        return cls(whole=nothing, segments={name: dict.fromkeys(values, nothing) for name, values in segments.items()})

    def add(self, log: Log, *, scores: Matrix) -> None:
        """Take in some rows with their scores, shape (columns, n)."""
        self.whole = self.whole.merged(Moments.of(*scores))
        for name, groups in self.segments.items():
            for value, moments in groups.items():
                own = _of_segment(log.fields[name], value, named=[name for name in groups if name != OTHERS])
                groups[value] = moments.merged(Moments.of(*scores[:, own]))


def shown_segments(counts: Counter[str]) -> list[str]:
    """The values that get a segment of their own; the rest share one."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    common = [value for value, _ in ranked[:MOST_SEGMENTS]]
    return common if len(counts) <= MOST_SEGMENTS else [*common[:-1], OTHERS]


def _of_segment(values: Strings, value: str, *, named: Sequence[str]) -> Choices:
    """The rows with this value; of OTHERS those with none of the named ones."""
    own = values == value if value != OTHERS else ~np.isin(values.astype(str), np.array(named))
    return np.flatnonzero(own)
