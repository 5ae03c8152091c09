"""What a replay sums: the summary of a log in the first pass, and the moments of the estimates in the second.

Everything is a sum over rows, so that a log of any length gives the numbers of the same log in memory. The scores of a
row, of all candidates and estimators and of the logged policy, are the columns of one matrix: its moments give every
estimate, and every difference with the error that a paired comparison has.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

import numpy as np

from ragbandit.router.offline.estimation import Choices, Estimator, Flags, Keys, Moments, Strings, terms
from ragbandit.router.offline.estimation.bandit_log import BY_TEXT, ArmTally, Log, WeightTally
from ragbandit.router.offline.estimation.reward_models import Ridge
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.shared.types import ArmName, FeatureRows, Matrix, Vector

#: no features
_BARE: Final = ("", 0)
#: (rows, index of the candidate) -> predicted rewards, qualities and costs, shape (n, K, 3)
Model = Callable[[Log, int], Matrix]


@dataclass(kw_only=True)
class RewardModelFit:
    """The cross-fitted reward model of a plan. Features are read where all rows have them, by one encoder."""

    plan: Plan
    #: None: no row was learned yet
    ridge: Ridge | None = None
    rows: int = 0
    #: encoder and width of the features that are read; None: no row was learned yet
    kind: tuple[str, int] | None = None
    #: what was predicted last, of which rows: candidates share the model and ask one after the other
    _last: tuple[Log, Matrix] | None = None

    def learn(self, log: Log) -> None:
        """Take in some rows."""
        folds = self.plan.folds_in(log)
        self.rows += len(log)
        self.read_only(self._kind(log))
        self.ridge = self.ridge or Ridge(arms=len(log.arms), folds=self.plan.folds)
        self.ridge.add(self._read(log), action=log.action, targets=_targets(log), folds=folds)

    def merged(self, other: "RewardModelFit") -> "RewardModelFit":
        """What both have learned."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        self.read_only(other.kind)
        other.read_only(self.kind)
        ridge = self.ridge.merged(other.ridge) if self.ridge and other.ridge else None
        return RewardModelFit(plan=self.plan, ridge=ridge, rows=self.rows + other.rows, kind=self.kind)

    def solve(self) -> None:
        """Fit; what is left is small, and predicts."""
        if self.ridge is not None:
            self.ridge.solve()

    def predicted(self, log: Log, _index: int) -> Matrix:
        """A `Model`."""
        if self._last is None or self._last[0] is not log:
            assert self.ridge is not None, "it is asked once it has learned"
            self._last = log, self.ridge.predict(self._read(log), folds=self.plan.folds_in(log))
        return self._last[1]

    def _kind(self, log: Log) -> tuple[str, int]:
        if self.plan.reward_model == "mean" or log.features is None:
            return _BARE
        return log.encoder_hash, log.features.shape[1]

    def read_only(self, kind: tuple[str, int] | None) -> None:
        """Read features of this kind; where others were read before, none at all."""
        if self.kind not in (None, _BARE, kind):
            self.ridge = self.ridge and self.ridge.without_features()
        self.kind = kind if self.kind in (None, kind) else _BARE

    def _read(self, log: Log) -> FeatureRows | None:
        return None if self.kind == _BARE else log.features


def _targets(log: Log) -> Matrix:
    """Columns reward, quality, cost, shape (n, 3)."""
    return np.stack([log.reward, log.quality, log.cost], axis=1)


#: segments of a field that are shown, the largest ones
MOST_SEGMENTS = 12
OTHERS = "others"
#: self-normalised estimators, made of the terms of another one
_SAME_TERMS = {"snips": "ips", "sndr": "dr"}


@dataclass(kw_only=True)
class LogSummary:
    """Summary statistics of a log, from the first pass."""

    rows: int = 0
    #: the arms, in the order of the columns
    names: tuple[ArmName, ...] = ()
    #: of the rows that have a time
    begin: float = np.inf
    end: float = -np.inf
    minimum: float = np.inf
    maximum: float = -np.inf
    #: least and largest reward, quality and cost, shape (3,)
    least: Vector = field(default_factory=lambda: np.full(3, np.inf))
    most: Vector = field(default_factory=lambda: np.full(3, -np.inf))
    arms: ArmTally = field(default_factory=ArmTally)
    #: rows that offered each arm, shape (K,)
    offered: Choices = field(default_factory=lambda: np.zeros(1, dtype=np.intp))
    weights: list[WeightTally] = field(default_factory=list)
    defaulted: int = 0
    late: int = 0
    raw: int = 0
    #: rewards that a judge made
    judged: int = 0
    #: encoder and width of the features, ("", 0) without any: more than one where not all rows have them by one encoder
    kinds: frozenset[tuple[str, int]] = frozenset()
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
        self.begin, self.end = stretched(self.begin, self.end, log.made_at)
        self.minimum, self.maximum = min(self.minimum, log.minimum), max(self.maximum, log.maximum)
        amounts = np.stack([log.reward, log.quality, log.cost])
        self.least, self.most = np.minimum(self.least, amounts.min(axis=1)), np.maximum(self.most, amounts.max(axis=1))
        self.arms.add(log)
        for tally, pmf in zip(self.weights, log.candidates, strict=True):
            weight = np.take_along_axis(pmf, log.action[:, None], axis=1)[:, 0] / log.propensity
            tally.add(log, candidate=pmf, weight=weight)
        self.defaulted += int(log.defaulted.sum())
        self.late += int(log.late.sum())
        self.raw += int(log.raw.sum())
        self.judged += 0 if log.judged is None else int(log.judged.sum())
        self.offered = self.offered + log.offered.sum(axis=0)
        self.kinds |= {(log.encoder_hash, 0 if log.features is None else log.features.shape[1])}
        self.keys.append(log.keys)
        self.texts.append(np.unique(log.questions[log.known_by == BY_TEXT]))
        self.known_by = self.known_by + np.bincount(log.known_by, minlength=3)
        for name, values in log.fields.items():
            self.fields.setdefault(name, Counter()).update(values.tolist())

    def merged(self, other: "LogSummary") -> "LogSummary":
        """The summary of both sets of rows."""
        summed = ("rows", "defaulted", "late", "raw", "judged", "offered", "known_by", "keys", "texts")
        smaller, larger = ("begin", "minimum"), ("end", "maximum")
        return LogSummary(
            names=self.names or other.names,
            least=np.minimum(self.least, other.least),
            most=np.maximum(self.most, other.most),
            arms=self.arms.merged(other.arms),
            weights=[mine.merged(theirs) for mine, theirs in zip(self.weights, other.weights, strict=True)],
            kinds=self.kinds | other.kinds,
            fields={
                name: self.fields.get(name, Counter()) + other.fields.get(name, Counter())
                for name in dict.fromkeys([*self.fields, *other.fields])
            },
            **{name: getattr(self, name) + getattr(other, name) for name in summed},
            **{name: min(getattr(self, name), getattr(other, name)) for name in smaller},
            **{name: max(getattr(self, name), getattr(other, name)) for name in larger},
        )

    @property
    def different_texts(self) -> int:
        """How many questions are different, of the rows that have their text."""
        return len(np.unique(np.concatenate(self.texts))) if self.texts else 0

    @property
    def has_features(self) -> bool:
        """Whether all rows have features, by one encoder."""
        return len(self.kinds) == 1 and self.kinds != {("", 0)}

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


def stretched(begin: float, end: float, made_at: Vector) -> tuple[float, float]:
    """The stretch of time with these rows; 0 is how a log says that it does not know the time."""
    known = made_at[made_at != 0.0]
    return min(begin, float(known.min(initial=np.inf))), max(end, float(known.max(initial=-np.inf)))


@dataclass(frozen=True, kw_only=True)
class CandidateRows:
    """Some rows with the probabilities of one candidate.

    Unsupported actions (logged probability 0) are imputed with the midpoint of the range; the bias is at most
    range / 2 x unsupported mass.
    """

    log: Log
    #: shape (n, K)
    pmf: Matrix
    model: Callable[[], Matrix]
    #: of the ranges of the reward, the quality and the cost
    middles: Sequence[float]

    @cached_property
    def unsupported(self) -> Flags:
        """Arms that the candidate plays and the logger could not, shape (n, K)."""
        return np.asarray((self.log.pmf <= 0.0) & (self.pmf > 0.0))

    @cached_property
    def unsupported_mass(self) -> Vector:
        """Their total probability; added to the weight its mean is 1; shape (n,)."""
        return np.asarray(np.where(self.unsupported, self.pmf, 0.0).sum(axis=1))

    @cached_property
    def predicted(self) -> Matrix:
        """Rewards, qualities and costs of every arm, shape (3, n, K)."""
        predicted = np.ascontiguousarray(np.moveaxis(self.model(), 2, 0))
        if self.unsupported.any():
            predicted = np.where(self.unsupported, np.reshape(self.middles, (3, 1, 1)), predicted)
        return predicted

    def scores(self, estimator: Estimator, *, target: int) -> tuple[Vector, Vector, Vector]:
        """(weight + unsupported mass, correction, baseline) of the reward, the quality or the cost."""
        modelled = estimator.facts.needs_model
        parts = terms(
            estimator,
            reward=(self.log.reward, self.log.quality, self.log.cost)[target],
            action=self.log.action,
            logged=self.log.pmf,
            candidate=self.pmf,
            predicted=self.predicted[target] if modelled else None,
        )
        baseline = parts.baseline if modelled else self.unsupported_mass * self.middles[target]
        return parts.weight + self.unsupported_mass, parts.correction, baseline


def candidate_rows(log: Log, *, model: Model, middles: Sequence[float]) -> list[CandidateRows]:
    """These rows with each of the candidates. middles: of the ranges of the reward, the quality and the cost."""
    return [
        CandidateRows(log=log, pmf=pmf, model=partial(model, log, index), middles=middles)
        for index, pmf in enumerate(log.candidates)
    ]


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

    def matrix(self, rows: Sequence[CandidateRows]) -> Matrix:
        """The scores of some rows, shape (columns, n)."""
        log = rows[0].log
        scores = np.empty((self.logged(3), len(log)))
        for index, one in enumerate(rows):
            for target in range(3):
                scores[self.of(index, target=target)] = one.scores(self.estimator, target=target)
            for name in self.beside:
                scores[self.of(index, other=name)] = one.scores(Estimator(name=name), target=0)
        scores[self.logged(0) :] = log.reward, log.quality, log.cost
        return scores


@dataclass(kw_only=True)
class ScoreSums:
    """Moments of the scores, from the second pass."""

    whole: Moments
    #: field -> value -> its rows
    segments: dict[str, dict[str, Moments]]

    def merged(self, other: "ScoreSums") -> "ScoreSums":
        """The sums over both sets of rows of one log."""
        return ScoreSums(
            whole=self.whole.merged(other.whole),
            segments={
                name: {value: moments.merged(other.segments[name][value]) for value, moments in groups.items()}
                for name, groups in self.segments.items()
            },
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimationPlan:
    """Columns and groups of the second pass."""

    columns: ScoreColumns
    #: rows of the whole log
    rows: int
    #: field -> the values that get a segment of their own, OTHERS among them
    segments: Mapping[str, Sequence[str]]

    def empty(self) -> ScoreSums:
        """Sums of no rows."""
        nothing = Moments.of(*np.empty((1, 0)))
        segments = {name: dict.fromkeys(values, nothing) for name, values in self.segments.items()}
        return ScoreSums(whole=nothing, segments=segments)

    def add(self, sums: ScoreSums, rows: Sequence[CandidateRows]) -> None:
        """Add some rows to the sums."""
        log, scores = rows[0].log, self.columns.matrix(rows)
        sums.whole = sums.whole.merged(Moments.of(*scores))
        for name, groups in sums.segments.items():
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
