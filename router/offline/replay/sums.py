"""The sums of a replay: first the summary of a log and the reward model, then the moments of the estimates.

A log of any length gives the numbers of the same log in memory. The scores of a row, for all candidates, estimators and
the logged policy, are columns of one matrix. Its moments give every estimate, and paired differences with their error.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Final

import numpy as np

from ragbandit.router.offline.estimation import (
    Choices,
    Estimator,
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

#: rows among which the first exploration is looked for
EARLIEST: Final = 100_000


@dataclass(kw_only=True, slots=True)
class LeftOut(Tally):
    """Rows of a part that are not judged."""

    #: their arm was not drawn
    undrawn: int = 0
    #: with `since`: rows without a time, and older rows
    timeless: int = 0
    older: int = 0
    #: before the first exploration
    early: int = 0


@dataclass(kw_only=True)
class LogPart:
    """A log or a part of it, in its order, as often as it is asked for."""

    #: name of a row in messages
    place: str = "row"
    #: the arrays, where they are in memory
    kept: list[Log] | None = None
    #: bytes of arrays that may stay in memory from one pass to the next: it is read once then
    room: int = 0
    #: rows that the last pass left out
    left_out: LeftOut = field(default_factory=LeftOut)
    #: no further batch is read
    stopped: bool = False

    def batches(self) -> Iterator[Log]:
        """Some rows at a time, with what every candidate does on them."""
        if self.kept is not None:
            yield from self.kept
            return
        kept: list[Log] = []
        used = 0
        for log in self.read():
            if self.stopped:
                return
            used += log.nbytes
            kept = [*kept, log] if used <= self.room else []
            yield log
        self.kept = kept if used <= self.room else None

    def read(self) -> Iterator[Log]:
        """The arrays from where they are stored."""
        raise NotImplementedError

    def names_of(self, key: np.uint64) -> list[str]:
        """The rows with this key of their id, in words."""
        lines = [log.lines[log.keys == key] for log in self.batches() if log.lines is not None]
        return [f"{self.place} {line}" for line in np.concatenate(lines)] if lines else ["a row in memory"] * 2


def memory_part(log: Log, *, undrawn: int = 0, early: int = 0) -> LogPart:
    """The arrays of a log in memory, a batch at a time. undrawn, early: rows that were left out."""
    kept = [log.part(slice(start, start + BATCH)) for start in range(0, len(log), BATCH)]
    return LogPart(kept=kept, left_out=LeftOut(undrawn=undrawn, early=early))


def certain_start(parts: Sequence[Iterable[Log]]) -> list[int]:
    """Rows of each part before the first exploration of a log, in which only one and the same arm could be drawn.

    All 0 if there is none among the first EARLIEST rows: then certain draws are no start.
    """
    counts, first = [0] * len(parts), -1
    for index, part in enumerate(parts):
        for log in part:
            first = int(log.action[0]) if first < 0 else first
            explores = (np.count_nonzero(log.pmf, axis=1) > 1) | (log.action != first)
            if explores.any():
                counts[index] += int(np.argmax(explores))
                return counts
            counts[index] += len(log)
            if sum(counts) > EARLIEST:
                return [0] * len(parts)
    return [0] * len(parts)


@dataclass(kw_only=True)
class SourcePart(LogPart):
    """The rows of a source, for candidates that are arithmetic on arrays. It can be pickled where the source can."""

    source: LogSource
    candidates: Sequence[CandidateSpec]
    plan: Plan
    arms: tuple[ArmName, ...]
    mixed_arms: bool = False
    #: rows decided before are left out, seconds since the epoch
    since: float | None = None
    #: rows before the first exploration, which are left out
    early: int = 0

    def __post_init__(self) -> None:
        self.place = self.source.place

    def read(self) -> Iterator[Log]:
        """As `LogPart` says. Raises InvalidInput for a row that cannot be true."""
        self.left_out = left = LeftOut()
        spec = BatchSpec(
            arms=self.arms,
            mixed_arms=self.mixed_arms,
            fields=tuple(dict.fromkeys(["version", *self.plan.segments])),
            own=tuple(spec.what for spec in self.candidates if spec.kind == "column"),
            features=self.plan.reward_model != "mean",
        )
        for batch in self.source.batches(spec.columns):
            rows = drawn_rows(batch)
            left.undrawn += batch.num_rows - rows.num_rows
            if not rows.num_rows:
                continue
            log = self.plan.read_at_weight(decoded(rows, spec=spec, place=self.place))
            named = partial(row_named, rows, place=self.place)
            log = replace(log, candidates=tuple(array_pmf(each, log=log, named=named) for each in self.candidates))
            if self.since is not None:
                recent = log.made_at >= self.since
                left.timeless += int(np.count_nonzero(log.made_at == 0.0))
                left.older += int(np.count_nonzero(~recent))
                log = log.part(recent)
            early = min(self.early - left.early, len(log))
            if early:
                left.early += early
                log = log.part(slice(early, None))
            if len(log):
                yield log


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


_MARKS: Final = ("defaulted", "late", "raw", "judged")


def _each_merged(ours: list[WeightTally], theirs: list[WeightTally]) -> list[WeightTally]:
    return [mine.merged(other) for mine, other in zip(ours, theirs, strict=True)]


@dataclass(kw_only=True)
class LogSummary(Tally):
    """What the first pass knows of a log: its counts and ranges, and the reward model."""

    model: RewardModel
    weights: list[WeightTally] = field(metadata={"merge": _each_merged})
    #: index of the candidate that is the baseline; None: the logged policy
    baseline: int | None = field(default=None, metadata={"merge": lambda ours, _: ours})
    #: largest difference between a probability of each candidate and the baseline's, shape (candidates,)
    apart: Vector = field(default_factory=lambda: np.zeros(0), metadata={"merge": np.maximum})
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
    #: rows by `_MARKS` of their reward: it is the default, had more feedback later, came whole, is a judge's
    marked: Counter[str] = field(default_factory=Counter)
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
        other = log.pmf if self.baseline is None else log.candidates[self.baseline]
        for index, (tally, pmf) in enumerate(zip(self.weights, log.candidates, strict=True)):
            tally.add(log, candidate=pmf)
            if self.apart[index] <= SUM_TOLERANCE:  # beyond it, how far is not asked
                self.apart[index] = max(self.apart[index], np.abs(pmf - other).max(initial=0.0))
        self.marked.update({name: int(np.count_nonzero(getattr(log, name))) for name in _MARKS})
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
    #: midpoints of the ranges of reward, quality and cost
    middles: Sequence[float]
    #: whether there is a model; without one its columns are 0
    modelled: bool

    def of(self, candidate: int, *, target: int, estimator: Estimator) -> Matrix:
        """(weight, correction, baseline) of this estimator as combinations of the columns, shape (3, columns).

        Unsupported actions get the midpoint of the range; the bias is at most range / 2 x unsupported mass.
        """
        rows, start = np.zeros((3, self.candidates * _WIDTH + 3)), candidate * _WIDTH
        own = start + 2 + 3 * target
        rows[:, [start, own, own + 1, own + 2]] = estimator.parts
        if not estimator.needs_model:
            rows[2, start + 1] = self.middles[target]
        return rows

    def logged(self, target: int) -> Vector:
        """What was logged in the same way, shape (columns,)."""
        return np.asarray(np.eye(1, self.candidates * _WIDTH + 3, self.candidates * _WIDTH + target)[0])

    def matrix(self, log: Log, *, model: RewardModel) -> Matrix:
        """The scores of some rows, shape (columns, n). The unsupported mass, added to a weight, makes its mean 1."""
        predicted = model.predicted(log) if self.modelled else np.zeros((3, *log.pmf.shape))
        targets = log.reward, log.quality, log.cost
        columns = np.empty((self.candidates * _WIDTH + 3, len(log)))
        for index, pmf in enumerate(log.candidates):
            mine, guess = columns[index * _WIDTH :], predicted
            missing = unsupported(log.pmf, candidate=pmf)
            mine[1] = np.where(missing, pmf, 0.0).sum(axis=1)
            if mine[1].any():
                guess = np.where(missing, np.reshape(self.middles, (3, 1, 1)), predicted)
            for at, (reward, of_arms) in enumerate(zip(targets, guess, strict=True), start=1):
                mine[0], mine[3 * at - 1], mine[3 * at], mine[3 * at + 1] = scores(
                    reward=reward, action=log.action, logged=log.pmf, candidate=pmf, predicted=of_arms
                )
            mine[0] += mine[1]
        columns[-3:] = targets
        return columns


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
        """Sums before any row. segments: field -> values with a segment of their own, including OTHERS."""
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


def learn_part(
    part: LogPart, *, plan: Plan, candidates: int, baseline: int | None = None, progress: Progress = no_progress
) -> LogSummary:
    """The first pass over a part: the summary with the reward model. baseline: index of a candidate."""
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
    """The second pass over a part: the sums of the estimates. rows: of the whole log."""
    row, sums = 0, ScoreSums.empty(segments)
    for log in part.batches():
        sums.add(log, scores=columns.matrix(log, model=model))
        row += len(log)
        progress("rows judged", row, rows)
    return sums


def check_ids(summary: LogSummary, *, parts: Sequence[LogPart]) -> None:
    """Raises InvalidInput for an id that stands in two rows: its decision would count twice."""
    keys = np.sort(np.concatenate(summary.keys))
    again = keys[1:][keys[1:] == keys[:-1]]
    if len(again):
        names = [name for part in parts for name in part.names_of(again[0])]
        raise InvalidInput(
            f"has the id of {names[0]}; {len(again)} rows repeat an id",
            field=f"{names[-1]} id",
            remedy="log every decision once; a row that is in two files would count twice",
        )


def check_summary(summary: LogSummary, *, since: float | None, log: str) -> None:
    """Raises InvalidInput for a log without rows, rows without the times asked for, and a segment that no row has."""
    left = summary.left_out
    check_times(kept=summary.rows, older=left.older, timeless=left.timeless, since=since, log=log)
    if not summary.rows:
        raise InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    for name in summary.model.plan.segments:
        if not any(summary.fields[name]):
            raise InvalidInput(
                "no row has it", field=f"segment {name}", remedy="use tenant, version, policy or a key of the context"
            )


def check_times(*, kept: int, older: int, timeless: int, since: float | None, log: str) -> None:
    """Raises InvalidInput where a time is asked for and rows have none, or all are older.

    kept, older: rows decided since then, and before. timeless: of the latter, those without a time.
    """
    if timeless:
        message, remedy = f"{timeless} of {kept + older} rows have no made_at", "log the times, or leave out --since"
        raise InvalidInput(message, field=f"{log} since", remedy=remedy)
    if older and not kept and since is not None:
        message = f"has no rows decided since {instant(since)}: all {older} are older"
        raise InvalidInput(message, field=log, remedy="give an earlier --since")
