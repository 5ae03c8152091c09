"""The sums that estimates are made of, in the second pass over a log; and the trials of an estimator's parameter.

Everything is a sum over rows, so that a log of any length gives the numbers of the same log in memory. A candidate is
measured against the baseline on the same rows: columns (w, e, b) of both side by side, whose moments give the
difference with the error that a paired comparison has.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.estimation.estimators import ESTIMATORS, Estimator, terms
from ragbandit.router.offline.estimation.moments import Moments
from ragbandit.router.offline.estimation.tuning import Trials, trials
from ragbandit.router.offline.replay.reward_model import Model
from ragbandit.router.offline.replay.summary import LogSummary, stretched
from ragbandit.router.offline.types import Choices, Flags, Matrix, Strings, Vector

__all__ = ["Accumulators", "CandidateRows", "EstimationPlan", "RowGroup", "candidate_rows", "measure"]

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
