"""The sums of a replay, which do not depend on how a log is cut into batches.

The scores of a row, for all candidates, are columns of one matrix. The moments of this matrix give every estimate, and
every paired difference with its error.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ragbandit.router.comparison import Design
from ragbandit.router.comparison.intervals import Moments
from ragbandit.router.offline.estimation import Keys, Progress, Tally, no_progress, scores
from ragbandit.router.offline.estimation.bandit_log import (
    BY_ID,
    SUM_TOLERANCE,
    ArmTally,
    Log,
    WeightTally,
    unsupported_arms,
)
from ragbandit.router.offline.estimation.reward_model import RewardModel
from ragbandit.router.offline.replay.parts import LeftOut, Part, by_origin
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan, candidate_pmf
from ragbandit.shared.types import ArmName, Flags, Indices, Matrix, Vector, effective_rows

#: flags of `Log` whose True values are counted
_FLAGS: Final = ("defaulted", "raw", "judged", "partial")


@dataclass(kw_only=True)
class LogSummary(Tally):
    """Sums of the first pass over the rows of one origin."""

    model: RewardModel
    weights: list[WeightTally] = field(metadata={"merge": lambda *tallies: list(map(WeightTally.merged, *tallies))})
    baseline: int | None = field(default=None, metadata={"merge": lambda first, _: first})
    #: largest difference of each candidate's probabilities from the baseline's, shape (candidates,)
    distances: Vector = field(default_factory=lambda: np.zeros(0), metadata={"merge": np.maximum})
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
    offered: Indices = field(default_factory=lambda: np.zeros(1, dtype=np.intp))
    marked: Counter[str] = field(default_factory=Counter)  #: name in _FLAGS -> number of rows
    keys: list[Keys] = field(default_factory=list)
    #: hashes of the questions that may occur again, an array per batch
    questions: list[Keys] = field(default_factory=list)
    #: whether every arm that was offered had the same logged probability, in all rows
    uniform: bool = field(default=True, metadata={"merge": lambda first, second: first and second})
    #: number of rows for each way of recognising the question (BY_TEXT, BY_FEATURES, BY_ID), shape (3,)
    recognised_by: Indices = field(default_factory=lambda: np.zeros(3, dtype=np.intp))
    fields: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, log: Log, *, pmfs: Sequence[Matrix]) -> None:
        """Add the rows of a batch. pmfs: the candidates' columns, each of shape (n, K)."""
        self.model.learn(log)
        self.rows += len(log)
        self.names = log.arms
        times = log.made_at[log.made_at != 0.0]  # 0 means that the time is not known
        columns = np.append(log.reward, [log.minimum, log.maximum]), log.quality, log.cost, times
        self.least = np.minimum(self.least, [column.min(initial=np.inf) for column in columns])
        self.most = np.maximum(self.most, [column.max(initial=-np.inf) for column in columns])
        self.arms.add(log)
        baseline_pmf = log.pmf if self.baseline is None else pmfs[self.baseline]
        for index, (tally, pmf) in enumerate(zip(self.weights, pmfs, strict=True)):
            tally.add(log, candidate=pmf)
            if self.distances[index] <= SUM_TOLERANCE:  # above the tolerance, the exact number does not matter
                self.distances[index] = max(self.distances[index], np.abs(pmf - baseline_pmf).max(initial=0.0))
        self.marked.update({name: int(np.count_nonzero(getattr(log, name))) for name in _FLAGS})
        self.offered = self.offered + log.offered.sum(axis=0)
        self.keys.append(log.keys)
        self.questions.append(log.questions[log.recognised_by != BY_ID])
        even = log.offered / log.offered.sum(axis=1, keepdims=True)
        self.uniform = self.uniform and bool(np.abs(log.pmf - even).max(initial=0.0) <= SUM_TOLERANCE)
        self.recognised_by = self.recognised_by + np.bincount(log.recognised_by, minlength=3)
        for name, values in log.fields.items():
            self.fields.setdefault(name, Counter()).update(values.tolist())

    @cached_property
    def occurrences(self) -> tuple[Keys, Indices]:
        """Returns (hashes of the different questions that may occur again, number of rows of each)."""
        keys, counts = np.unique(np.concatenate(self.questions), return_counts=True)
        return keys, counts

    @property
    def different(self) -> int:
        """The number of different questions."""
        return len(self.occurrences[0]) + int(self.recognised_by[BY_ID])

    @property
    def may_be_paired(self) -> bool:
        """Whether the questions may have the outcomes of every arm."""
        return self.uniform and self.rows >= 2 * self.different

    def bounds(self, target: int) -> tuple[float, float]:
        """Range of the reward (target 0), the quality (1) or the cost (2)."""
        return float(self.least[target]), float(self.most[target])


#: number of columns per candidate: the weight, then correction and baseline (see `scores`) of reward, quality and cost
_WIDTH: Final = 1 + 2 * 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Computes the scores of rows, in columns: _WIDTH for each candidate, logged reward, quality and cost, and a 1.

    If `arms` is not 0, further columns show whether a question has the outcomes of every arm: for each arm whether it
    was drawn, and 1 / number of offered arms.
    """

    candidates: int
    middles: Sequence[float]  #: midpoints of the ranges of reward, quality and cost
    arms: int = 0

    @property
    def width(self) -> int:
        return self.candidates * _WIDTH + 4

    def coefficients_of(self, candidate: int, *, target: int) -> Matrix:
        """The linear combinations of the columns that give (weight, correction, baseline), shape (3, columns).

        target: 0 for reward, 1 for quality, 2 for cost. An unsupported decision counts as the midpoint of the target's
        range, so the bias is at most half of the range x share of unsupported decisions.
        """
        first = candidate * _WIDTH
        return np.asarray(np.eye(self.width)[[first, first + 1 + 2 * target, first + 2 + 2 * target]])

    def logged_coefficients(self, target: int) -> Vector:
        """The linear combination of the columns that gives the logged value of this target, shape (columns,)."""
        return np.asarray(np.eye(self.width)[self.candidates * _WIDTH + target])

    def matrix(self, log: Log, *, pmfs: Sequence[Matrix], model: RewardModel) -> Matrix:
        """The scores of n rows, shape (columns, n). Weights include the unsupported mass, so that their mean is 1."""
        predicted = model.predict(log)
        targets = log.reward, log.quality, log.cost
        columns = np.ones((self.width, len(log)))
        for index, pmf in enumerate(pmfs):
            block, guess = columns[index * _WIDTH :], predicted
            missing = unsupported_arms(log.pmf, candidate=pmf)
            if missing.any():
                guess = np.where(missing, np.reshape(self.middles, (3, 1, 1)), predicted)
            for target, (values, of_arms) in enumerate(zip(targets, guess, strict=True)):
                block[[0, 1 + 2 * target, 2 + 2 * target]] = scores(
                    reward=values, action=log.action, logged=log.pmf, candidate=pmf, predicted=of_arms
                )
            block[0] += np.where(missing, pmf, 0.0).sum(axis=1)
        columns[self.width - 4 : self.width - 1] = targets
        if not self.arms:
            return columns
        drawn = np.arange(self.arms)[:, None] == log.action
        return np.concatenate([columns, drawn, 1.0 / log.offered.sum(axis=1)[None]])

    def complete(self, sums: Matrix) -> Flags:
        """Flags of questions: True if the question has the outcomes of every offered arm equally often.

        sums: sums of their rows, shape (columns, questions).
        """
        drawn, expected = sums[self.width : -1], sums[-1]
        return np.asarray(((drawn == 0.0) | (np.abs(drawn - expected) < SUM_TOLERANCE)).all(axis=0))


@dataclass(kw_only=True)
class QuestionSums(Tally):
    """Sums of the scores over the rows of each question: the rows of one question are not independent."""

    once: Moments  #: moments over the questions that have one row
    #: (hashes of questions that have several rows, sums over some of their rows: (columns, questions))
    repeated: list[tuple[Keys, Matrix]] = field(default_factory=list)

    @classmethod
    def empty(cls) -> "QuestionSums":
        return cls(once=Moments.of(*np.empty((1, 0))))

    def add(self, scores: Matrix, *, questions: Keys, repeats: Keys) -> None:
        """Add scores (columns, n) of questions (n,). repeats: hashes of the log's repeated questions, sorted."""
        if not scores.shape[1]:
            return
        again = np.zeros(len(questions), dtype=np.bool_)
        if len(repeats):
            again = repeats[np.minimum(np.searchsorted(repeats, questions), len(repeats) - 1)] == questions
        self.once = self.once.merged(Moments.of(*(scores[:, ~again] if again.any() else scores)))
        if again.any():
            self.repeated.append(_by_question(questions[again], scores[:, again]))
        # Doubling keeps the number of sums below twice the number of questions, without sorting them at each batch.
        if len(self.repeated) > 1 and sum(len(keys) for keys, _ in self.repeated[1:]) > len(self.repeated[0][0]):
            self.repeated = [self.joined()]

    def joined(self) -> tuple[Keys, Matrix]:
        keys, sums = zip(*self.repeated, strict=True)
        return _by_question(np.concatenate(keys), np.concatenate(sums, axis=1))


def _by_question(keys: Keys, scores: Matrix) -> tuple[Keys, Matrix]:
    order = np.argsort(keys, kind="stable")
    different, starts = np.unique(keys[order], return_index=True)
    return different, np.add.reduceat(scores[:, order], starts, axis=1)


MOST_SEGMENTS = 12
#: name of the segment that contains all values that have no segment of their own
OTHERS = "others"
#: (field, value) of a segment
Segment = tuple[str, str]
#: the segment of all rows
ALL: Final = ("", "")


def segment_names(counts: Mapping[str, int]) -> list[str]:
    """The MOST_SEGMENTS most frequent values; OTHERS is the last one if there are more."""
    common = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_SEGMENTS]
    return common if len(counts) <= MOST_SEGMENTS else [*common[:-1], OTHERS]


#: imported rows (True) and decisions of the service (False) -> their summary
Summaries = dict[bool, LogSummary]


@dataclass(kw_only=True)
class CountedRows(Tally):
    """Result of the first pass."""

    by_origin: Summaries = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)


@dataclass(kw_only=True)
class ScoredRows(Tally):
    """Result of the second pass."""

    segments: dict[Segment, QuestionSums] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """Facts about the judged rows that the second pass needs."""

    model: RewardModel
    candidates: Sequence[CandidateSpec]
    columns: Scores
    repeats: Keys  #: hashes of the questions with several rows, sorted
    segments: Mapping[str, Sequence[str]]  #: field -> names of its segments, including OTHERS

    @classmethod
    def of(cls, summary: LogSummary, *, candidates: Sequence[CandidateSpec], segments: Sequence[str]) -> "Measure":
        """Solve the reward model, which has learned all rows. segments: names of fields."""
        summary.model.solve()
        keys, counts = summary.occurrences
        middles = [sum(summary.bounds(target)) / 2.0 for target in range(3)]
        arms = len(summary.names) if summary.may_be_paired else 0
        return cls(
            model=summary.model,
            candidates=candidates,
            columns=Scores(candidates=len(candidates), middles=middles, arms=arms),
            repeats=keys[counts > 1],
            segments={name: segment_names(summary.fields[name]) for name in segments},
        )

    def rows_of(self, log: Log) -> Iterator[tuple[Segment, Any]]:
        """Yield (segment, indices of its rows), ALL first."""
        yield ALL, slice(None)
        for name, values in self.segments.items():
            of_rows, named = log.fields[name], np.array([value for value in values if value != OTHERS])
            for value in values:
                selected = of_rows == value if value != OTHERS else ~np.isin(of_rows.astype(str), named)
                yield (name, value), np.flatnonzero(selected)


def count_part(
    part: Part,
    *,
    plan: Plan,
    candidates: Sequence[CandidateSpec],
    baseline: int | None = None,
    progress: Progress = no_progress,
) -> CountedRows:
    """Make the first pass over a part. baseline: index of a candidate; None for the logged policy."""
    first, done = CountedRows(), 0
    for log in part.batches(first.left_out):
        for origin, rows in by_origin(log):
            if origin not in first.by_origin:
                first.by_origin[origin] = LogSummary(
                    model=RewardModel(folds=plan.folds),
                    weights=[WeightTally() for _ in candidates],
                    baseline=baseline,
                    distances=np.zeros(len(candidates)),
                )
            first.by_origin[origin].add(rows, pmfs=[candidate_pmf(spec, rows) for spec in candidates])
        done += len(log)
        progress("rows summarized", done, 0)
    return first


def score_part(
    part: Part, *, origin: bool, measure: Measure, rows: int, progress: Progress = no_progress
) -> ScoredRows:
    """Make the second pass over the rows of an origin. rows: number of rows of the whole log, for progress."""
    second, done = ScoredRows(), 0
    for log in part.batches(LeftOut()):
        for own in (own for kind, own in by_origin(log) if kind == origin):
            pmfs = [candidate_pmf(spec, own) for spec in measure.candidates]
            matrix = measure.columns.matrix(own, pmfs=pmfs, model=measure.model)
            for segment, places in measure.rows_of(own):
                of_segment = second.segments.setdefault(segment, QuestionSums.empty())
                of_segment.add(matrix[:, places], questions=own.questions[places], repeats=measure.repeats)
        done += len(log)
        progress("rows judged", done, rows)
    return second


@dataclass(frozen=True, kw_only=True, slots=True)
class LogMoments:
    """Moments over the questions of a log, and the design that they come from."""

    design: Design
    summary: LogSummary
    measure: Measure
    whole: Moments
    segments: Mapping[Segment, "LogMoments"] = field(default_factory=dict)
    is_segment: bool = False  #: whether `whole` covers only a segment of the rows of `summary`

    @classmethod
    def of(cls, summary: LogSummary, *, measure: Measure, sums: Mapping[Segment, QuestionSums]) -> "LogMoments":
        """The moments of these sums. The design is paired outcomes if every question has the outcomes of every arm."""
        width, design = measure.columns.width, "logged draws"
        if measure.columns.arms and sums[ALL].repeated and not sums[ALL].once.rows:
            _, of_questions = sums[ALL].joined()
            if measure.columns.complete(of_questions).all():
                design = "paired outcomes"
        whole = _moments(sums[ALL], width=width)
        evidence = cls(design=design, summary=summary, measure=measure, whole=whole)  # type: ignore[arg-type]
        segments = {
            (name, value): replace(evidence, whole=_moments(sums[name, value], width=width), is_segment=True)
            for name, values in measure.segments.items()
            for value in values
        }
        return replace(evidence, segments=segments)

    @property
    def rows(self) -> int:
        return round(self.whole.rows * float(self.whole.mean[-1]))

    def effective_rows(self, index: int) -> float:
        """Effective rows of a candidate, at most the number of questions."""
        if not self.is_segment:
            return min(self.summary.weights[index].surely_effective_rows, self.whole.rows)
        weight = self.whole.combined(self.measure.columns.coefficients_of(index, target=0)[:1])
        total = weight.rows * float(weight.mean[0])
        squares = float(weight.scatter[0, 0]) + total * float(weight.mean[0])
        return min(effective_rows(total, squares=squares), weight.rows)


def _moments(sums: QuestionSums, *, width: int) -> Moments:
    """The moments of the first `width` columns over all questions."""
    moments = sums.once
    if sums.repeated:
        moments = moments.merged(Moments.of(*sums.joined()[1]))
    return Moments(rows=moments.rows, mean=moments.mean[:width], scatter=moments.scatter[:width, :width])
