"""The second pass over the pieces of a log: the sums of the estimates; and the trials of an estimator's parameter.

Everything is a sum over rows, so that a log of any length gives the numbers of the same log in memory. A candidate is
measured against the baseline on the same rows: columns (w, e, b) of both side by side, whose moments give the
difference with the error that a paired comparison has.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.estimation.estimators import ESTIMATORS, Estimator, terms
from ragbandit.router.offline.estimation.moments import Moments
from ragbandit.router.offline.estimation.tuning import Trials, trials
from ragbandit.router.offline.replay.passes.reward_model import Model
from ragbandit.router.offline.replay.passes.summary import LogSummary, stretched
from ragbandit.router.offline.replay.sources.pieces import Piece, Pieces
from ragbandit.router.offline.types import Choices, Flags, Matrix, Progress, Strings, Vector

__all__ = ["Accumulators", "Columns", "EstimationPlan", "RowGroup", "Views", "measure", "tuned"]

#: stretches of time, of equally many rows
STRETCHES = 12
#: segments of a field that are shown, the largest ones
MOST_SEGMENTS = 12
OTHERS = "others"
#: self-normalised estimators, made of the terms of another one
_SAME_TERMS = {"snips": "ips", "sndr": "dr"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Moments of (w, e, b) of a candidate and of the baseline: six columns, one Moments per target."""

    targets: tuple[Moments, ...]

    def merged(self, other: "Columns") -> "Columns":
        """The accumulators of both sets of rows together."""
        return Columns(targets=tuple(a.merged(b) for a, b in zip(self.targets, other.targets, strict=True)))


@dataclass(kw_only=True, slots=True)
class RowGroup:
    """Rows that belong together, per candidate."""

    columns: list[Columns | None]
    begin: float = np.inf
    end: float = -np.inf

    def add(self, index: int, more: Columns) -> None:
        """Take in rows of a candidate."""
        standing = self.columns[index]
        self.columns[index] = more if standing is None else standing.merged(more)

    def merged(self, other: "RowGroup") -> "RowGroup":
        """The rows of both."""
        found = RowGroup(columns=[*self.columns], begin=min(self.begin, other.begin), end=max(self.end, other.end))
        for index, more in enumerate(other.columns):
            if more is not None:
                found.add(index, more)
        return found


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
            others=[_merged(mine, theirs) for mine, theirs in zip(self.others, other.others, strict=True)],
            pairs=_merged(self.pairs, other.pairs),
        )

    def whole(self, index: int) -> Columns:
        """All rows of a candidate."""
        found: Columns | None = None
        for group in self.stretches:
            columns = group.columns[index]
            if columns is not None:
                found = columns if found is None else found.merged(columns)
        assert found is not None
        return found


Name = TypeVar("Name")


def _merged(mine: Mapping[Name, Moments], theirs: Mapping[Name, Moments]) -> dict[Name, Moments]:
    both = mine.keys() & theirs.keys()
    return {**mine, **theirs, **{name: mine[name].merged(theirs[name]) for name in both}}


Side = tuple[Vector, Vector, Vector]


@dataclass(frozen=True, kw_only=True)
class _View:
    """A piece with the probabilities of one candidate.

    Unsupported actions (logged probability 0) are imputed with the midpoint of the range; the bias is at most
    range / 2 x unsupported mass.
    """

    log: Log
    #: shape (n, K)
    pmf: Matrix
    model: Callable[[], Matrix]
    #: of the reward, the quality and the cost
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

    def side(self, estimator: Estimator, *, target: int) -> Side:
        """The columns (w + unsupported mass, e, b)."""
        modelled = ESTIMATORS[estimator.name].needs_model
        made = terms(
            estimator,
            reward=self.targets[target],
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

    @property
    def targets(self) -> Sequence[Vector]:
        """Reward, quality, cost, each of shape (n,)."""
        return self.log.reward, self.log.quality, self.log.cost


@dataclass(frozen=True, kw_only=True)
class Views:
    """Pieces with the probabilities of every candidate."""

    pieces: Pieces
    model: Model
    #: of the ranges of the reward, the quality and the cost
    middles: Sequence[float]

    def __iter__(self) -> Iterator[tuple[Piece, list[_View]]]:
        for piece in self.pieces:
            yield piece, [self._view(piece, index) for index in range(len(piece.candidates))]

    def _view(self, piece: Piece, index: int) -> _View:
        log = piece.log
        return _View(log=log, pmf=piece.candidates[index], model=lambda: self.model(log, index), middles=self.middles)


def tuned(views: Views, *, name: str, rows: int, progress: Progress) -> list[Trials]:
    """For each candidate the trials of every parameter of this estimator."""
    found: list[Trials] = []
    done = 0
    for piece, here in views:
        more = [view.trials(name) for view in here]
        found = [one.merged(other) for one, other in zip(found, more, strict=True)] if found else more
        done += len(piece.log)
        progress("parameters tried", done, rows)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimationPlan:
    """Estimators and baseline of the second pass."""

    #: of each candidate
    estimators: Sequence[Estimator]
    others: Sequence[Estimator]
    #: of the candidate that is the baseline; None: the logged policy
    baseline: int | None


def logged_side(log: Log) -> list[Side]:
    """The logged policy itself: every row as it is."""
    one, none = np.ones(len(log)), np.zeros(len(log))
    return [(one, values, none) for values in (log.reward, log.quality, log.cost)]


def measure(
    views: Views,
    *,
    summary: LogSummary,
    estimation: EstimationPlan,
    fields: Sequence[str],
    progress: Progress,
    first_row: int = 0,
) -> Accumulators:
    """The second pass, over all rows or those of a part. summary: of all rows. first_row: rows before the part."""
    count = len(summary.weights)
    shown = {name: _shown(summary.fields[name]) for name in fields}
    accumulators = Accumulators(
        stretches=[RowGroup(columns=[None] * count) for _ in range(min(STRETCHES, summary.rows))],
        segments={
            name: {value: RowGroup(columns=[None] * count) for value in values} for name, values in shown.items()
        },
        others=[{} for _ in range(count)],
        pairs={},
    )
    row = first_row
    for piece, here in views:
        sides = [
            [view.side(estimator, target=target) for target in range(3)]
            for view, estimator in zip(here, estimation.estimators, strict=True)
        ]
        base = logged_side(piece.log) if estimation.baseline is None else sides[estimation.baseline]
        stretch = (np.arange(row, row + len(piece.log)) * len(accumulators.stretches)) // summary.rows
        _add_stretches(accumulators, stretch, sides=sides, base=base, made_at=piece.log.made_at)
        for name, groups in accumulators.segments.items():
            _add_segments(groups, piece.log.fields[name], sides=sides, base=base)
        _add_others(accumulators, here, others=estimation.others)
        _add_pairs(accumulators, sides)
        row += len(piece.log)
        progress("rows judged", row, summary.rows)
    return accumulators


def _shown(counts: Counter[str]) -> list[str]:
    """The values that get a segment of their own; the rest share one."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    common = [value for value, _ in ranked[:MOST_SEGMENTS]]
    return common if len(counts) <= MOST_SEGMENTS else [*common[:-1], OTHERS]


def _columns(side: list[Side], base: list[Side], rows: slice | Choices) -> Columns:
    return Columns(
        targets=tuple(
            Moments.of(*(column[rows] for column in (*mine, *theirs))) for mine, theirs in zip(side, base, strict=True)
        )
    )


def _add_stretches(
    accumulators: Accumulators, stretch: Choices, *, sides: list[list[Side]], base: list[Side], made_at: Vector
) -> None:
    edges = np.flatnonzero(np.diff(stretch)) + 1
    for start, stop in zip([0, *edges], [*edges, len(stretch)], strict=True):
        group = accumulators.stretches[int(stretch[start])]
        times = made_at[start:stop]
        group.begin, group.end = stretched(group.begin, group.end, times)
        for index, side in enumerate(sides):
            group.add(index, _columns(side, base, slice(start, stop)))


def _add_segments(
    groups: Mapping[str, RowGroup], values: Strings, *, sides: list[list[Side]], base: list[Side]
) -> None:
    for value, group in groups.items():
        named = np.array([name != OTHERS for name in groups])
        own = values == value if value != OTHERS else ~np.isin(values.astype(str), np.array(list(groups))[named])
        rows = np.flatnonzero(own)
        if len(rows):
            for index, side in enumerate(sides):
                group.add(index, _columns(side, base, rows))


def _add_others(accumulators: Accumulators, views: Sequence[_View], *, others: Sequence[Estimator]) -> None:
    for found, view in zip(accumulators.others, views, strict=True):
        made: dict[str, Moments] = {}
        for estimator in others:
            terms_of = _SAME_TERMS.get(estimator.name, estimator.name)
            if terms_of not in made:
                made[terms_of] = Moments.of(*view.side(estimator, target=0))
            more = made[terms_of]
            standing = found.get(estimator.name)
            found[estimator.name] = more if standing is None else standing.merged(more)


def _add_pairs(accumulators: Accumulators, sides: list[list[Side]]) -> None:
    for first in range(len(sides)):
        for second in range(first):
            more = Moments.of(*sides[second][0], *sides[first][0])
            standing = accumulators.pairs.get((second, first))
            accumulators.pairs[second, first] = more if standing is None else standing.merged(more)
