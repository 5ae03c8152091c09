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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import numpy as np

from ragbandit.router.offline.estimation import Choices, Estimator, Keys, Moments, Tally, terms
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
            if counts.sum() == 1.0:
                what = "has one row: what a row would earn is learned from the other rows"
                raise InvalidInput(what, field="log", remedy="replay a log of two rows or more")
            remedy = "use a longer log, or a fixed model"
            raise InvalidInput(f"no rows outside of fold {fold}", field="folds", remedy=remedy)
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
        ridges = [model.ridge for model in (self, other) if model.ridge is not None]
        ridges = ridges if both.reads_features else [ridge.without_features() for ridge in ridges]
        both.ridge = reduce(Ridge.merged, ridges) if ridges else None
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


@dataclass(kw_only=True, slots=True)
class LeftOut(Tally):
    """Rows of a part that are not judged."""

    #: nobody drew their arm
    undrawn: int = 0
    #: with a time asked for: rows that have none, and older rows
    timeless: int = 0
    older: int = 0


def _each_merged(ours: list[WeightTally], theirs: list[WeightTally]) -> list[WeightTally]:
    return [mine.merged(other) for mine, other in zip(ours, theirs, strict=True)]


@dataclass(kw_only=True)
class LogSummary(Tally):
    """What the first pass knows of a log: its counts and ranges, and the reward model."""

    model: RewardModel
    weights: list[WeightTally] = field(metadata={"merge": _each_merged})
    left_out: LeftOut = field(default_factory=LeftOut)
    rows: int = 0
    #: the arms, in the order of the columns
    names: tuple[ArmName, ...] = field(default=(), metadata={"merge": lambda ours, theirs: ours or theirs})
    #: least and largest reward (as declared), quality ([0, 1] and what was seen), cost (from 0) and known time
    least: Vector = field(default_factory=lambda: np.array([np.inf, 0, 0, np.inf]), metadata={"merge": np.minimum})
    most: Vector = field(default_factory=lambda: np.array([-np.inf, 1, *[-np.inf] * 2]), metadata={"merge": np.maximum})
    arms: ArmTally = field(default_factory=ArmTally)
    #: rows that offered each arm, shape (K,)
    offered: Choices = field(default_factory=lambda: np.zeros(1, dtype=np.intp))
    #: rows whose reward is the default, had more feedback later, came whole, is a judge's
    defaulted: int = 0
    late: int = 0
    raw: int = 0
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
        self.model.learn(log)
        self.rows, self.names = self.rows + len(log), log.arms
        known = log.made_at[log.made_at != 0.0]  # 0 is how a log says that it does not know the time
        columns = np.append(log.reward, [log.minimum, log.maximum]), log.quality, log.cost, known
        self.least = np.minimum(self.least, [each.min(initial=np.inf) for each in columns])
        self.most = np.maximum(self.most, [each.max(initial=-np.inf) for each in columns])
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
        """Range of the reward, the quality or the cost."""
        return float(self.least[target]), float(self.most[target])


#: scores of a candidate: weight, unsupported mass; of reward, quality and cost w r, w (r - model) and sum of Q model
_WIDTH: Final = 2 + 3 * 3


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The columns of a row's scores: _WIDTH of each candidate, last the logged reward, quality and cost."""

    #: how many there are
    candidates: int
    #: of the ranges of the reward, the quality and the cost
    middles: Sequence[float]
    #: whether there is a model; without one its columns are 0
    modelled: bool

    def of(self, candidate: int, *, target: int, estimator: Estimator) -> Matrix:
        """(weight, correction, baseline) of this estimator as combinations of the columns, shape (3, columns).

        Unsupported actions (logged probability 0) are imputed with the midpoint of the range; the bias is at most
        range / 2 x unsupported mass.
        """
        rows, start = np.zeros((3, self.candidates * _WIDTH + 3)), candidate * _WIDTH
        rows[0, start] = 1.0
        whole = start + 2 + 3 * target
        if estimator.needs_model:
            rows[1, whole + 1], rows[2, whole + 2] = not estimator.biased, 1.0
        else:
            rows[1, whole], rows[2, start + 1] = 1.0, self.middles[target]
        return rows

    def logged(self, target: int) -> Vector:
        """What was logged in the same way, shape (columns,)."""
        return np.asarray(np.eye(1, self.candidates * _WIDTH + 3, self.candidates * _WIDTH + target)[0])

    def matrix(self, log: Log, *, model: RewardModel) -> Matrix:
        """The scores of some rows, shape (columns, n). The unsupported mass, added to a weight, makes its mean 1."""
        predicted = model.predicted(log) if self.modelled else np.zeros((3, *log.pmf.shape))
        targets = log.reward, log.quality, log.cost
        scores, doubly = np.empty((self.candidates * _WIDTH + 3, len(log))), Estimator(name="dr")
        for index, pmf in enumerate(log.candidates):
            mine, guess = scores[index * _WIDTH :], predicted
            unsupported = (log.pmf <= 0.0) & (pmf > 0.0)
            mine[1] = np.where(unsupported, pmf, 0.0).sum(axis=1)
            if mine[1].any():
                guess = np.where(unsupported, np.reshape(self.middles, (3, 1, 1)), predicted)
            for at, (reward, of_arms) in enumerate(zip(targets, guess, strict=True)):
                weight, correction, baseline = terms(
                    doubly, reward=reward, action=log.action, logged=log.pmf, candidate=pmf, predicted=of_arms
                )
                mine[2 + 3 * at : 5 + 3 * at] = weight * reward, correction, baseline
            mine[0] = weight + mine[1]
        scores[-3:] = targets
        return scores


#: segments of a field that are shown, the largest ones
MOST_SEGMENTS = 12
OTHERS = "others"


@dataclass(kw_only=True)
class ScoreSums(Tally):
    """Moments of the scores, from the second pass."""

    whole: Moments
    #: field -> value -> its rows
    segments: dict[str, dict[str, Moments]]

    @classmethod
    def empty(cls, segments: Mapping[str, Sequence[str]]) -> "ScoreSums":
        """Of no rows. segments: field -> the values that get a segment of their own, OTHERS among them."""
        nothing = Moments.of(*np.empty((1, 0)))
        return cls(whole=nothing, segments={name: dict.fromkeys(values, nothing) for name, values in segments.items()})

    def add(self, log: Log, *, scores: Matrix) -> None:
        """Take in some rows with their scores, shape (columns, n)."""
        self.whole = self.whole.merged(Moments.of(*scores))
        for name, groups in self.segments.items():
            values, named = log.fields[name], np.array([value for value in groups if value != OTHERS])
            for value, moments in groups.items():
                own = values == value if value != OTHERS else ~np.isin(values.astype(str), named)
                groups[value] = moments.merged(Moments.of(*scores[:, np.flatnonzero(own)]))


def ranked(counts: Mapping[str, int]) -> list[str]:
    """The largest first, equal ones by name."""
    return sorted(counts, key=lambda name: (-counts[name], name))


def shown_segments(counts: Mapping[str, int]) -> list[str]:
    """The values that get a segment of their own; the rest share one."""
    common = ranked(counts)[:MOST_SEGMENTS]
    return common if len(counts) <= MOST_SEGMENTS else [*common[:-1], OTHERS]
