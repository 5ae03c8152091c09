"""The sums of a replay, which do not depend on how a log is cut into batches.

The scores of a row, for all candidates, are columns of one matrix. The moments of this matrix give every estimate, and
every paired difference with its error.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Final

import numpy as np

from ragbandit.router.offline.estimation import (
    Choices,
    Keys,
    Moments,
    Progress,
    Ridge,
    Tally,
    no_progress,
    scores,
)
from ragbandit.router.offline.estimation.bandit_log import (
    BY_TEXT,
    SUM_TOLERANCE,
    ArmTally,
    Log,
    WeightTally,
    unsupported,
)
from ragbandit.router.offline.logs.batches import BatchSpec, LogSource, decoded, drawn_rows, row_named
from ragbandit.router.offline.logs.parquet import BATCH
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan, array_pmf, instant
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, FeatureRows, Matrix, Vector

#: the first exploration is searched for in this number of first rows
EARLIEST: Final = 100_000


@dataclass(kw_only=True, slots=True)
class LeftOut(Tally):
    undrawn: int = 0  #: rows whose arm was not drawn
    timeless: int = 0  #: rows without a time, counted if `since` is set
    older: int = 0  #: rows decided before `since`
    early: int = 0  #: rows before the first exploration


@dataclass(kw_only=True)
class LogPart:
    """A log or a part of it. The batches have the same order each time they are read."""

    place: str = "row"  #: prefix of a row's name in messages
    kept: list[Log] | None = None  #: all batches if they are in memory, else None
    room: int = 0  #: bytes of arrays that may stay in memory; a part that fits is read once for both passes
    left_out: LeftOut = field(default_factory=LeftOut)
    stopped: bool = False  #: True ends a pass after its current batch

    def batches(self) -> Iterator[Log]:
        if self.kept is not None:
            yield from self.kept
            return
        cached: list[Log] = []
        used = 0
        for log in self.read():
            if self.stopped:
                return
            used += log.nbytes
            cached = [*cached, log] if used <= self.room else []
            yield log
        self.kept = cached if used <= self.room else None

    def read(self) -> Iterator[Log]:
        raise NotImplementedError

    def names_of(self, key: np.uint64) -> list[str]:
        lines = [log.lines[log.keys == key] for log in self.batches() if log.lines is not None]
        return [f"{self.place} {line}" for line in np.concatenate(lines)] if lines else ["a row in memory"] * 2


def memory_part(log: Log, *, undrawn: int = 0, early: int = 0) -> LogPart:
    batches = [log.part(slice(start, start + BATCH)) for start in range(0, len(log), BATCH)]
    return LogPart(kept=batches, left_out=LeftOut(undrawn=undrawn, early=early))


def certain_start(parts: Sequence[Iterable[Log]]) -> list[int]:
    """Number of rows in each part before the first exploration of the log: until then the same arm was always certain.

    All numbers are 0 if no row explores, or if more than EARLIEST rows precede the first exploration.
    """
    counts = [0] * len(parts)
    first_arm = -1
    for index, part in enumerate(parts):
        for log in part:
            first_arm = int(log.action[0]) if first_arm < 0 else first_arm
            explores = (np.count_nonzero(log.pmf, axis=1) > 1) | (log.action != first_arm)
            if explores.any():
                counts[index] += int(np.argmax(explores))
                return counts
            counts[index] += len(log)
            if sum(counts) > EARLIEST:
                return [0] * len(parts)
    return [0] * len(parts)


@dataclass(kw_only=True)
class SourcePart(LogPart):
    """The rows of a source, for candidates that read no questions. It can be pickled if the source can."""

    source: LogSource
    candidates: Sequence[CandidateSpec]
    plan: Plan
    arms: tuple[ArmName, ...]
    mixed_arms: bool = False
    #: decisions made before this time are not judged, seconds since the epoch; None to judge all
    since: float | None = None
    early: int = 0  #: number of first rows to leave out, since they precede the first exploration

    def __post_init__(self) -> None:
        self.place = self.source.place

    def read(self) -> Iterator[Log]:
        self.left_out = left_out = LeftOut()
        spec = BatchSpec(
            arms=self.arms,
            mixed_arms=self.mixed_arms,
            fields=tuple(dict.fromkeys(["version", *self.plan.segments])),
            own=tuple(spec.what for spec in self.candidates if spec.kind == "column"),
            features=True,
        )
        for batch in self.source.batches(spec.columns):
            rows = drawn_rows(batch)
            left_out.undrawn += batch.num_rows - rows.num_rows
            if not rows.num_rows:
                continue
            log = self.plan.read_at_weight(decoded(rows, spec=spec, place=self.place))
            named = partial(row_named, rows, place=self.place)
            log = replace(log, candidates=tuple(array_pmf(spec, log=log, named=named) for spec in self.candidates))
            if self.since is not None:
                recent = log.made_at >= self.since
                left_out.timeless += int(np.count_nonzero(log.made_at == 0.0))
                left_out.older += int(np.count_nonzero(~recent))
                log = log.part(recent)
            early = min(self.early - left_out.early, len(log))
            if early:
                left_out.early += early
                log = log.part(slice(early, None))
            if len(log):
                yield log


@dataclass(kw_only=True)
class RewardModel:
    """The cross-fitted reward model of a plan: a ridge per arm on the features, or the arms' means without features.

    It reads features if one encoder made the features of all rows.
    """

    plan: Plan
    ridge: Ridge | None = None
    #: (hash of the encoder, width) of the features that occurred; ("", 0) for rows without features
    kinds: frozenset[tuple[str, int]] = frozenset()

    def learn(self, log: Log) -> None:
        self.kinds |= {(log.encoder_hash, 0 if log.features is None else log.features.shape[1])}
        ridge = self.ridge or Ridge(arms=len(log.arms), folds=self.plan.folds)
        self.ridge = ridge if self.has_features else ridge.without_features()
        targets = np.stack([log.reward, log.quality, log.cost], axis=1)
        self.ridge.add(self._read(log), action=log.action, targets=targets, folds=self.plan.folds_in(log))

    def merged(self, other: "RewardModel") -> "RewardModel":
        both = RewardModel(plan=self.plan, kinds=self.kinds | other.kinds)
        ridges = [model.ridge for model in (self, other) if model.ridge is not None]
        ridges = ridges if both.has_features else [ridge.without_features() for ridge in ridges]
        both.ridge = reduce(Ridge.merged, ridges) if ridges else None
        return both

    def solve(self) -> None:
        if self.ridge is not None:
            self.ridge.solve()

    def predicted(self, log: Log) -> Matrix:
        """Rewards, qualities and costs of every arm, shape (3, n, K)."""
        assert self.ridge is not None, "a model predicts after it has learned"
        predicted = self.ridge.predict(self._read(log), folds=self.plan.folds_in(log))
        return np.ascontiguousarray(np.moveaxis(predicted, 2, 0))

    @property
    def has_features(self) -> bool:
        return len(self.kinds) == 1 and all(width for _, width in self.kinds)

    def _read(self, log: Log) -> FeatureRows | None:
        return log.features if self.has_features else None


#: flags of `Log` whose True values are counted
_FLAGS: Final = ("defaulted", "late", "raw", "judged", "partial")


@dataclass(kw_only=True)
class LogSummary(Tally):
    model: RewardModel
    weights: list[WeightTally] = field(metadata={"merge": lambda *tallies: list(map(WeightTally.merged, *tallies))})
    baseline: int | None = field(default=None, metadata={"merge": lambda first, _: first})
    #: largest difference of each candidate's probabilities from the baseline's, shape (candidates,)
    apart: Vector = field(default_factory=lambda: np.zeros(0), metadata={"merge": np.maximum})
    left_out: LeftOut = field(default_factory=LeftOut)
    rows: int = 0
    names: tuple[ArmName, ...] = field(default=(), metadata={"merge": lambda first, second: first or second})
    #: four minima: of rewards and their declared bounds, of qualities and 0, of costs and 0, and of known times
    least: Vector = field(default_factory=lambda: np.array([np.inf, 0, 0, np.inf]), metadata={"merge": np.minimum})
    #: four maxima: of rewards and their declared bounds, of qualities and 1, of costs, and of known times
    most: Vector = field(
        default_factory=lambda: np.array([-np.inf, 1, -np.inf, -np.inf]), metadata={"merge": np.maximum}
    )
    arms: ArmTally = field(default_factory=ArmTally)
    #: number of rows that offered each arm, shape (K,)
    offered: Choices = field(default_factory=lambda: np.zeros(1, dtype=np.intp))
    marked: Counter[str] = field(default_factory=Counter)  #: name in _FLAGS -> number of rows
    keys: list[Keys] = field(default_factory=list)
    #: hashes of the different texts of questions, an array per batch
    texts: list[Keys] = field(default_factory=list)
    #: number of rows for each way of recognising the question (BY_TEXT, BY_FEATURES, BY_ID), shape (3,)
    known_by: Choices = field(default_factory=lambda: np.zeros(3, dtype=np.intp))
    fields: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, log: Log) -> None:
        self.model.learn(log)
        self.rows += len(log)
        self.names = log.arms
        times = log.made_at[log.made_at != 0.0]  # 0 means that the time is not known
        columns = np.append(log.reward, [log.minimum, log.maximum]), log.quality, log.cost, times
        self.least = np.minimum(self.least, [column.min(initial=np.inf) for column in columns])
        self.most = np.maximum(self.most, [column.max(initial=-np.inf) for column in columns])
        self.arms.add(log)
        baseline_pmf = log.pmf if self.baseline is None else log.candidates[self.baseline]
        for index, (tally, pmf) in enumerate(zip(self.weights, log.candidates, strict=True)):
            tally.add(log, candidate=pmf)
            if self.apart[index] <= SUM_TOLERANCE:  # above the tolerance, the exact number does not matter
                self.apart[index] = max(self.apart[index], np.abs(pmf - baseline_pmf).max(initial=0.0))
        self.marked.update({name: int(np.count_nonzero(getattr(log, name))) for name in _FLAGS})
        self.offered = self.offered + log.offered.sum(axis=0)
        self.keys.append(log.keys)
        self.texts.append(np.unique(log.questions[log.known_by == BY_TEXT]))
        self.known_by = self.known_by + np.bincount(log.known_by, minlength=3)
        for name, values in log.fields.items():
            self.fields.setdefault(name, Counter()).update(values.tolist())

    def bounds(self, target: int) -> tuple[float, float]:
        """Range of the reward (target 0), the quality (1) or the cost (2)."""
        return float(self.least[target]), float(self.most[target])


#: number of columns per candidate: the weight, then correction and baseline (see `scores`) of reward, quality and cost
_WIDTH: Final = 1 + 2 * 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """The columns of a row's scores: _WIDTH for each candidate, then the logged reward, quality and cost."""

    candidates: int
    middles: Sequence[float]  #: midpoints of the ranges of reward, quality and cost

    def of(self, candidate: int, *, target: int) -> Matrix:
        """Combinations of the columns that give (weight, correction, baseline), shape (3, columns).

        target: 0 for reward, 1 for quality, 2 for cost. An unsupported decision counts as the midpoint of the target's
        range, so the bias is at most half of the range x share of unsupported decisions.
        """
        first = candidate * _WIDTH
        rows = np.zeros((3, self.candidates * _WIDTH + 3))
        rows[[0, 1, 2], [first, first + 1 + 2 * target, first + 2 + 2 * target]] = 1.0
        return rows

    def logged(self, target: int) -> Vector:
        """The combination of the columns that gives the logged value of this target, shape (columns,)."""
        return np.asarray(np.eye(1, self.candidates * _WIDTH + 3, self.candidates * _WIDTH + target)[0])

    def matrix(self, log: Log, *, model: RewardModel) -> Matrix:
        """The scores of n rows, shape (columns, n). Unsupported mass is added to the weight, so that its mean is 1."""
        predicted = model.predicted(log)
        targets = log.reward, log.quality, log.cost
        columns = np.empty((self.candidates * _WIDTH + 3, len(log)))
        for index, pmf in enumerate(log.candidates):
            block, guess = columns[index * _WIDTH :], predicted
            missing = unsupported(log.pmf, candidate=pmf)
            if missing.any():
                guess = np.where(missing, np.reshape(self.middles, (3, 1, 1)), predicted)
            for target, (values, of_arms) in enumerate(zip(targets, guess, strict=True)):
                block[[0, 1 + 2 * target, 2 + 2 * target]] = scores(
                    reward=values, action=log.action, logged=log.pmf, candidate=pmf, predicted=of_arms
                )
            block[0] += np.where(missing, pmf, 0.0).sum(axis=1)
        columns[-3:] = targets
        return columns


MOST_SEGMENTS = 12
#: name of the segment that contains all values that have no segment of their own
OTHERS = "others"


@dataclass(kw_only=True)
class ScoreSums(Tally):
    whole: Moments
    segments: dict[str, dict[str, Moments]]

    @classmethod
    def empty(cls, segments: Mapping[str, Sequence[str]]) -> "ScoreSums":
        """Sums before any row. segments: field -> names of its segments, including OTHERS."""
        nothing = Moments.of(*np.empty((1, 0)))
        return cls(whole=nothing, segments={name: dict.fromkeys(values, nothing) for name, values in segments.items()})

    def add(self, log: Log, *, scores: Matrix) -> None:
        self.whole = self.whole.merged(Moments.of(*scores))
        for name, groups in self.segments.items():
            values, named = log.fields[name], np.array([value for value in groups if value != OTHERS])
            for value, moments in groups.items():
                selected = values == value if value != OTHERS else ~np.isin(values.astype(str), named)
                groups[value] = moments.merged(Moments.of(*scores[:, np.flatnonzero(selected)]))


def ranked(counts: Mapping[str, int]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))


def shown_segments(counts: Mapping[str, int]) -> list[str]:
    common = ranked(counts)[:MOST_SEGMENTS]
    return common if len(counts) <= MOST_SEGMENTS else [*common[:-1], OTHERS]


def learn_part(
    part: LogPart, *, plan: Plan, candidates: int, baseline: int | None = None, progress: Progress = no_progress
) -> LogSummary:
    """Make the first pass over a part. baseline: index of a candidate; None for the logged policy."""
    tallies = [WeightTally() for _ in range(candidates)]
    summary = LogSummary(model=RewardModel(plan=plan), weights=tallies, baseline=baseline, apart=np.zeros(candidates))
    for log in part.batches():
        summary.add(log)
        progress("rows summarized", summary.rows, 0)
    summary.left_out = part.left_out
    return summary


def measure_part(
    part: LogPart,
    *,
    model: RewardModel,
    columns: Scores,
    segments: Mapping[str, Sequence[str]],
    rows: int,
    progress: Progress = no_progress,
) -> ScoreSums:
    """Make the second pass over a part. rows: number of rows of the whole log, for progress."""
    done, sums = 0, ScoreSums.empty(segments)
    for log in part.batches():
        sums.add(log, scores=columns.matrix(log, model=model))
        done += len(log)
        progress("rows judged", done, rows)
    return sums


def check_times(*, kept: int, older: int, timeless: int, since: float | None, log: str) -> None:
    """Raise InvalidInput if `since` is set, and rows have no time or all are older. kept: rows decided since then."""
    if timeless:
        message, remedy = f"{timeless} of {kept + older} rows have no made_at", "log the times, or leave out --since"
        raise InvalidInput(message, field=f"{log} since", remedy=remedy)
    if older and not kept and since is not None:
        message = f"has no rows decided since {instant(since)}: all {older} are older"
        raise InvalidInput(message, field=log, remedy="give an earlier --since")
