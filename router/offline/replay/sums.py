"""What a replay sums: the summary of a log in the first pass, and what estimates are made of in the second.

Everything is a sum over rows, so that a log of any length gives the numbers of the same log in memory. A candidate is
measured against the baseline on the same rows: columns (w, e, b) of both side by side, whose moments give the
difference with the error that a paired comparison has.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import BY_TEXT, Log
from ragbandit.router.offline.estimation.diagnostics import ArmTally, WeightTally
from ragbandit.router.offline.estimation.estimators import ESTIMATORS, Estimator, terms
from ragbandit.router.offline.estimation.moments import Moments
from ragbandit.router.offline.estimation.tuning import Trials, trials
from ragbandit.router.offline.replay.parts import LeftOut
from ragbandit.router.offline.replay.reward_model import Model
from ragbandit.router.offline.types import Choices, Flags, Keys, Matrix, Strings, Vector
from ragbandit.shared.types import ArmName

#: (w, e, b) of some rows, shape (n,) each; and those of the reward, the quality and the cost
Columns = tuple[Vector, Vector, Vector]
Side = Sequence[Columns]

#: stretches of time, of equally many rows
STRETCHES = 12
#: segments of a field that are shown, the largest ones
MOST_SEGMENTS = 12
OTHERS = "others"
#: self-normalised estimators, made of the terms of another one
_SAME_TERMS = {"snips": "ips", "sndr": "dr"}
_NONE = Moments.of(*np.empty((6, 0)))


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
    #: least and largest reward, quality and cost, shape (3, 2)
    ranges: Matrix = field(default_factory=lambda: np.array([[np.inf, -np.inf]] * 3))
    arms: ArmTally = field(default_factory=ArmTally)
    #: rows that offered each arm, shape (K,)
    offered: Choices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    weights: list[WeightTally] = field(default_factory=list)
    defaulted: int = 0
    late: int = 0
    raw: int = 0
    #: rewards that a judge made
    judged: int = 0
    #: encoder and width of the features; ("", 0): the rows have none
    kinds: frozenset[tuple[str, int]] = frozenset()
    #: keys of the ids, and of the texts that are known, each once; one array per part
    keys: list[Keys] = field(default_factory=list)
    texts: list[Keys] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    #: rows by how their question is known, shape (3,)
    known_by: Choices = field(default_factory=lambda: np.zeros(3, dtype=np.intp))
    #: as in Log
    rating_weight: float = 1.0
    #: field -> value -> rows
    fields: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, log: Log) -> None:
        """Take in some rows."""
        self.rows, self.names = self.rows + len(log), log.arms
        self.begin, self.end = stretched(self.begin, self.end, log.made_at)
        self.minimum, self.maximum = min(self.minimum, log.minimum), max(self.maximum, log.maximum)
        for target, amounts in enumerate((log.reward, log.quality, log.cost)):
            low, high = self.ranges[target]
            self.ranges[target] = min(low, float(amounts.min())), max(high, float(amounts.max()))
        self.arms.add(log)
        for tally, pmf in zip(self.weights, log.candidates, strict=True):
            tally.add(log, candidate=pmf, weight=weight_of(log, pmf))
        self.defaulted += int(log.defaulted.sum())
        self.late += int(log.late.sum())
        self.raw += int(log.raw.sum())
        self.judged += 0 if log.judged is None else int(log.judged.sum())
        self.offered = _added(self.offered, log.offered.sum(axis=0))
        self.kinds |= {(log.encoder_hash, 0 if log.features is None else log.features.shape[1])}
        self.keys.append(log.keys)
        self.texts.append(np.unique(log.questions[log.known_by == BY_TEXT]))
        self.known_by = self.known_by + np.bincount(log.known_by, minlength=3)
        self.rating_weight = max(self.rating_weight, log.rating_weight)
        for name, values in log.fields.items():
            self.fields.setdefault(name, Counter()).update(values.tolist())

    def closed(self) -> "LogSummary":
        """The summary of a part whose rows are all here: its keys in one array."""
        joined = [np.concatenate(keys) if keys else np.zeros(0, dtype=np.uint64) for keys in (self.keys, self.texts)]
        return replace(self, keys=[joined[0]], texts=[np.unique(joined[1])])

    @property
    def different_texts(self) -> int:
        """How many questions are different, of the rows that have their text."""
        return len(np.unique(np.concatenate(self.texts))) if self.texts else 0

    def merged(self, other: "LogSummary") -> "LogSummary":
        """The summary of both sets of rows."""
        low, high = np.minimum(self.ranges, other.ranges)[:, 0], np.maximum(self.ranges, other.ranges)[:, 1]
        return LogSummary(
            rows=self.rows + other.rows,
            names=self.names or other.names,
            begin=min(self.begin, other.begin),
            end=max(self.end, other.end),
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            ranges=np.stack([low, high], axis=1),
            arms=self.arms.merged(other.arms),
            weights=[mine.merged(theirs) for mine, theirs in zip(self.weights, other.weights, strict=True)],
            defaulted=self.defaulted + other.defaulted,
            late=self.late + other.late,
            raw=self.raw + other.raw,
            judged=self.judged + other.judged,
            offered=_added(self.offered, other.offered),
            kinds=self.kinds | other.kinds,
            keys=[*self.keys, *other.keys],
            texts=[*self.texts, *other.texts],
            left_out=self.left_out.merged(other.left_out),
            known_by=self.known_by + other.known_by,
            rating_weight=max(self.rating_weight, other.rating_weight),
            fields={
                name: self.fields.get(name, Counter()) + other.fields.get(name, Counter())
                for name in dict.fromkeys([*self.fields, *other.fields])
            },
        )

    def bounds(self, target: int) -> tuple[float, float]:
        """Range of the reward (as declared), the quality ([0, 1] and what was seen) or cost (0 to what was seen)."""
        low, high = self.ranges[target]
        if self.rating_weight > 1.0 and target < 2:  # what is completed may lie outside
            return (self.minimum, self.maximum) if target == 0 else (0.0, 1.0)
        if target == 0:
            return min(self.minimum, low), max(self.maximum, high)
        return (min(0.0, low), max(1.0, high)) if target == 1 else (min(0.0, low), high)


def stretched(begin: float, end: float, made_at: Vector) -> tuple[float, float]:
    """The stretch of time with these rows; 0 is how a log says that it does not know the time."""
    known = made_at[made_at != 0.0]
    return min(begin, float(known.min(initial=np.inf))), max(end, float(known.max(initial=-np.inf)))


def weight_of(log: Log, pmf: Matrix) -> Vector:
    """Candidate / logged of the drawn arms, shape (n,)."""
    return np.asarray(np.take_along_axis(pmf, log.action[:, None], axis=1)[:, 0] / log.propensity)


def _added(one: Choices, other: Choices) -> Choices:
    return one + other if len(one) and len(other) else one if len(one) else other


@dataclass(kw_only=True, slots=True)
class RowGroup:
    """Rows that belong together.

    Per candidate and target (reward, quality, cost): the moments of (w, e, b) of the candidate and of the baseline, six
    columns.
    """

    moments: list[list[Moments]]
    begin: float = np.inf
    end: float = -np.inf

    @classmethod
    def empty(cls, candidates: int) -> "RowGroup":
        """Without rows."""
        return cls(moments=[[_NONE] * 3 for _ in range(candidates)])

    def add(self, sides: Sequence[Side], base: Side, *, rows: slice | Choices) -> None:
        """Take in some of a batch's rows, of every candidate."""
        for mine, side in zip(self.moments, sides, strict=True):
            for target, (one, other) in enumerate(zip(side, base, strict=True)):
                mine[target] = mine[target].merged(Moments.of(*(column[rows] for column in (*one, *other))))

    def merged(self, other: "RowGroup") -> "RowGroup":
        """The rows of both."""
        both = [
            [one.merged(more) for one, more in zip(mine, theirs, strict=True)]
            for mine, theirs in zip(self.moments, other.moments, strict=True)
        ]
        return RowGroup(moments=both, begin=min(self.begin, other.begin), end=max(self.end, other.end))


@dataclass(kw_only=True)
class Accumulators:
    """Sums of the second pass, per group, estimator and pair."""

    stretches: list[RowGroup]
    #: field -> value -> group
    segments: dict[str, dict[str, RowGroup]]
    #: per candidate: estimator -> moments of its (w, e, b) for the reward
    others: list[dict[str, Moments]]
    #: (first, second) candidate -> six columns for the reward
    pairs: dict[tuple[int, int], Moments]

    def merged(self, other: "Accumulators") -> "Accumulators":
        """The sums over both sets of rows of one log."""
        return Accumulators(
            stretches=[mine.merged(theirs) for mine, theirs in zip(self.stretches, other.stretches, strict=True)],
            segments={
                name: {value: group.merged(other.segments[name][value]) for value, group in groups.items()}
                for name, groups in self.segments.items()
            },
            others=[
                {name: mine[name].merged(theirs[name]) for name in mine}
                for mine, theirs in zip(self.others, other.others, strict=True)
            ],
            pairs={pair: moments.merged(other.pairs[pair]) for pair, moments in self.pairs.items()},
        )

    def whole(self, index: int) -> list[Moments]:
        """All rows of a candidate, per target."""
        first, *rest = self.stretches
        for group in rest:
            first = first.merged(group)
        return first.moments[index]


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
        found = np.ascontiguousarray(np.moveaxis(self.model(), 2, 0))
        if self.unsupported.any():
            found = np.where(self.unsupported, np.reshape(self.middles, (3, 1, 1)), found)
        return found

    def columns(self, estimator: Estimator, *, target: int) -> Columns:
        """(w + unsupported mass, e, b) of the reward, the quality or the cost."""
        modelled = estimator.facts.needs_model
        made = terms(
            estimator,
            reward=(self.log.reward, self.log.quality, self.log.cost)[target],
            action=self.log.action,
            logged=self.log.pmf,
            candidate=self.pmf,
            predicted=self.predicted[target] if modelled else None,
        )
        baseline = made.baseline if modelled else self.unsupported_mass * self.middles[target]
        return made.weight + self.unsupported_mass, made.correction, baseline

    def trials(self, name: str) -> Trials:
        """Trials of every parameter of an estimator on the reward."""
        return trials(
            name,
            reward=self.log.reward,
            action=self.log.action,
            logged=self.log.pmf,
            candidate=self.pmf,
            predicted=self.predicted[0] if ESTIMATORS[name].needs_model else None,
        )


def candidate_rows(log: Log, *, model: Model, middles: Sequence[float]) -> list[CandidateRows]:
    """These rows with each of the candidates. middles: of the ranges of the reward, the quality and the cost."""
    return [
        CandidateRows(log=log, pmf=pmf, model=partial(model, log, index), middles=middles)
        for index, pmf in enumerate(log.candidates)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimationPlan:
    """Estimators and baseline of the second pass."""

    #: of each candidate
    estimators: Sequence[Estimator]
    others: Sequence[Estimator]
    #: of the candidate that is the baseline; None: the logged policy
    baseline: int | None
    #: rows of the whole log
    rows: int
    #: field -> the values that get a segment of their own, OTHERS among them
    segments: Mapping[str, Sequence[str]]

    @classmethod
    def of(
        cls,
        summary: LogSummary,
        *,
        estimators: Sequence[Estimator],
        others: Sequence[Estimator],
        baseline: int | None,
        fields: Sequence[str],
    ) -> "EstimationPlan":
        """For a log with this summary; fields: by which it is judged."""
        segments = {name: _shown(summary.fields[name]) for name in fields}
        return cls(estimators=estimators, others=others, baseline=baseline, rows=summary.rows, segments=segments)

    def empty(self) -> Accumulators:
        """Sums of no rows."""
        count = len(self.estimators)
        return Accumulators(
            stretches=[RowGroup.empty(count) for _ in range(min(STRETCHES, self.rows))],
            segments={
                name: {value: RowGroup.empty(count) for value in values} for name, values in self.segments.items()
            },
            others=[{one.name: Moments.of(*np.empty((3, 0))) for one in self.others} for _ in range(count)],
            pairs={(first, second): _NONE for second in range(count) for first in range(second)},
        )


def measure(sums: Accumulators, rows: Sequence[CandidateRows], *, plan: EstimationPlan, first_row: int) -> None:
    """Add some rows; first_row: rows of the log before them."""
    log = rows[0].log
    sides: list[Side] = [
        [one.columns(estimator, target=target) for target in range(3)]
        for one, estimator in zip(rows, plan.estimators, strict=True)
    ]
    base = _logged_side(log) if plan.baseline is None else sides[plan.baseline]
    stretch = (np.arange(first_row, first_row + len(log)) * len(sums.stretches)) // plan.rows
    edges = np.flatnonzero(np.diff(stretch)) + 1
    for start, stop in zip([0, *edges], [*edges, len(stretch)], strict=True):
        group = sums.stretches[int(stretch[start])]
        group.begin, group.end = stretched(group.begin, group.end, log.made_at[start:stop])
        group.add(sides, base, rows=slice(start, stop))
    for name, groups in sums.segments.items():
        for value, segment in groups.items():
            own = _of_segment(log.fields[name], value, named=[name for name in groups if name != OTHERS])
            if len(own):
                segment.add(sides, base, rows=own)
    for moments, one in zip(sums.others, rows, strict=True):
        _add_others(moments, one, others=plan.others)
    for first, second in sums.pairs:
        more = Moments.of(*sides[first][0], *sides[second][0])
        sums.pairs[first, second] = sums.pairs[first, second].merged(more)


def _logged_side(log: Log) -> Side:
    """The logged policy itself: every row as it is."""
    one, none = np.ones(len(log)), np.zeros(len(log))
    return [(one, values, none) for values in (log.reward, log.quality, log.cost)]


def _shown(counts: Counter[str]) -> list[str]:
    """The values that get a segment of their own; the rest share one."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    common = [value for value, _ in ranked[:MOST_SEGMENTS]]
    return common if len(counts) <= MOST_SEGMENTS else [*common[:-1], OTHERS]


def _of_segment(values: Strings, value: str, *, named: Sequence[str]) -> Choices:
    """The rows with this value; of OTHERS those with none of the named ones."""
    own = values == value if value != OTHERS else ~np.isin(values.astype(str), np.array(named))
    return np.flatnonzero(own)


def _add_others(sums: dict[str, Moments], rows: CandidateRows, *, others: Sequence[Estimator]) -> None:
    made: dict[str, Moments] = {}
    for estimator in others:
        terms_of = _SAME_TERMS.get(estimator.name, estimator.name)
        if terms_of not in made:
            made[terms_of] = Moments.of(*rows.columns(estimator, target=0))
        sums[estimator.name] = sums[estimator.name].merged(made[terms_of])
