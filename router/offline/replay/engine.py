"""The engine: folds the batches of a log into sums, in two passes, and the sums into results.

    pass 1   counts, weights, draws, keys of the ids; sums of the reward model     -> checked, the model solved
    pass 2   sums of the estimates, by segment                                     -> the result

A log has one part, or one for each of its files. Parts are read one after the other, or by the workers of an executor;
what they give is merged in the order of the files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ragbandit.router.offline.estimation import Estimator, Progress, Tally, no_progress
from ragbandit.router.offline.estimation.bandit_log import Log, WeightTally
from ragbandit.router.offline.logs.batches import BatchSpec, check_choice, decoded, drawn, offered_arms, row_named
from ragbandit.router.offline.logs.parquet import BATCH, LogSource
from ragbandit.router.offline.processes import each_part
from ragbandit.router.offline.replay.assemble import ResultAssembler
from ragbandit.router.offline.replay.opening import LoggedPolicies, check_times
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    LOGGED,
    CandidatePmf,
    CandidateSpec,
    Plan,
    ReplayResult,
    Skipped,
    array_pmf,
)
from ragbandit.router.offline.replay.sums import LeftOut, LogSummary, RewardModel, Scores, ScoreSums, shown_segments
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName

Sums = TypeVar("Sums", bound=Tally)

#: rows per fold from which on estimators with a model are shown unasked
FEWEST_ROWS = 2
#: bytes of arrays that are kept from one pass to the next, of all parts
KEPT_BYTES: Final = 1 << 28


class LogPart(Protocol):
    """A log or a part of it, in its order, as often as it is asked for."""

    def batches(self) -> Iterator[Log]:
        """Some rows at a time, with what every candidate does on them."""
        ...

    @property
    def left_out(self) -> LeftOut:
        """Rows that the last pass left out."""
        ...

    def names_of(self, key: np.uint64) -> list[str]:
        """The rows with this key of their id, in words."""
        ...


@dataclass(kw_only=True, slots=True)
class MemoryPart:
    """The arrays of a whole log in memory, a batch at a time; they were checked when they were made."""

    log: Log
    left_out: LeftOut = field(default_factory=LeftOut, init=False)

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says."""
        for start in range(0, len(self.log), BATCH):
            yield self.log.part(slice(start, start + BATCH))

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says."""
        return [f"row {row + 1}" for row in np.flatnonzero(self.log.keys == key)]


@dataclass(kw_only=True, slots=True)
class Room:
    """Bytes that parts may still keep from one pass to the next."""

    free: int


@dataclass(kw_only=True, slots=True)
class KeptPart:
    """A part whose arrays stay in memory after the first pass where there is room for them: it is read once."""

    part: LogPart
    room: Room
    _kept: list[Log] | None = field(default=None, init=False)

    @property
    def left_out(self) -> LeftOut:
        """As `LogPart` says."""
        return self.part.left_out

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says."""
        return self.part.names_of(key)

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Log] = []
        used = 0
        for log in self.part.batches():
            used += log.nbytes
            if used <= self.room.free:
                kept.append(log)
            else:
                kept.clear()
            yield log
        if used <= self.room.free:
            self._kept, self.room.free = kept, self.room.free - used


@dataclass(kw_only=True, slots=True)
class SourcePart:
    """The rows of a source, for candidates that are arithmetic on arrays. It can be pickled where the source can."""

    source: LogSource
    candidates: Sequence[CandidateSpec]
    plan: Plan
    #: (): those of the first row that was drawn
    arms: tuple[ArmName, ...]
    mixed_arms: bool = False
    #: rows decided before are left out, seconds since the epoch
    since: float | None = None
    left_out: LeftOut = field(default_factory=LeftOut, init=False)

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says. Raises InvalidInput for a row that cannot be true."""
        self.left_out = LeftOut()
        for rows in self._drawn(self._spec()):
            log = self.plan.read_at_weight(decoded(rows, spec=self._spec(), place=self.source.place))
            named = partial(row_named, rows, place=self.source.place)
            pmfs = [array_pmf(candidate, log=log, named=named) for candidate in self.candidates]
            log = replace(log, candidates=tuple(pmfs))
            if self.since is not None:
                recent = log.made_at >= self.since
                self.left_out.timeless += int(np.count_nonzero(log.made_at == 0.0))
                self.left_out.older += int(np.count_nonzero(~recent))
                log = log.part(recent)
            if len(log):
                yield log

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says; reads the source again."""
        spec, place = replace(self._spec(), fields=(), own=()), self.source.place
        return [
            row_named(rows, int(row), place=place)
            for rows in self._drawn(spec)
            for row in np.flatnonzero(decoded(rows, spec=spec, place=place).keys == key)
        ]

    def _drawn(self, spec: BatchSpec) -> Iterator[Any]:
        """Record batches of the rows that were drawn."""
        for batch in self.source.batches(spec):
            here = drawn(batch)
            rows = batch if here.all() else batch.filter(pa.array(here))
            self.left_out.undrawn += batch.num_rows - rows.num_rows
            if rows.num_rows:
                if not self.arms:
                    self.arms = tuple(offered_arms(rows.slice(0, 1)))
                    check_choice(self.arms)
                yield rows

    def _spec(self) -> BatchSpec:
        return BatchSpec(
            arms=self.arms,
            mixed_arms=self.mixed_arms,
            fields=tuple(dict.fromkeys(["version", *self.plan.segments])),
            own=tuple(spec.what for spec in self.candidates if spec.kind == "column"),
            features=self.plan.reward_model != "mean",
        )


def estimate_candidates(
    parts: Sequence[LogPart],
    *,
    candidates: Sequence[CandidateSpec],
    candidate_pmfs: Sequence[CandidatePmf],
    plan: Plan,
    log: str,
    logged: LoggedPolicies | None = None,
    since: float | None = None,
    notes: Sequence[str] = (),
    skipped: Sequence[Skipped] = (),
    empty: InvalidInput | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> ReplayResult:
    """Judge these candidates, whose probabilities are in the parts of a log.

    candidate_pmfs: descriptions and notes of the candidates, in the same order. log: description of the source. logged:
    the policies of its store, where it has one. since: rows decided before this time are left out, seconds since the
    epoch. empty: the error of a log without rows. executor: reads the parts; None: this process, one after the other.
    Raises InvalidInput for a row that cannot be true, an empty log, a baseline that is no candidate.
    """
    baseline = baseline_of(plan, candidates)
    if executor is None:
        room = Room(free=KEPT_BYTES)
        parts = [KeptPart(part=part, room=room) for part in parts]
    merged = partial(_merged, parts=parts, executor=executor, progress=progress)
    summary: LogSummary = merged("summarized", partial(learn_part, plan=plan, candidates=len(candidates)))
    _check_summary(summary, since=since, log=log, empty=empty)
    _check_ids(summary, parts=parts)
    summary.model.solve()
    modelled = Estimator(name=plan.estimator).needs_model or summary.rows >= FEWEST_ROWS * plan.folds
    middles = [sum(summary.bounds(target)) / 2.0 for target in range(3)]
    columns = Scores(candidates=len(candidates), middles=middles, modelled=modelled)
    segments = {name: shown_segments(summary.fields[name]) for name in plan.segments}
    measure = partial(measure_part, model=summary.model, columns=columns, segments=segments, rows=summary.rows)
    sums: ScoreSums = merged("judged", measure)
    assembler = ResultAssembler(
        plan=plan, candidates=candidates, columns=columns, summary=summary, sums=sums, baseline=baseline
    )
    return assembler.result(candidate_pmfs, log=log, logged=logged, since=since, notes=notes, skipped=skipped)


def learn_part(part: LogPart, *, plan: Plan, candidates: int, progress: Progress = no_progress) -> LogSummary:
    """The first pass over a part: the summary with the reward model."""
    summary = LogSummary(model=RewardModel(plan=plan), weights=[WeightTally() for _ in range(candidates)])
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


def _merged(
    name: str,
    work: Callable[..., Sums],
    parts: Sequence[LogPart],
    *,
    executor: Executor | None,
    progress: Progress,
) -> Sums:
    """What a pass sums over all parts, in their order. name: what is done to the rows, for progress."""
    if executor is None and len(parts) == 1:
        return work(parts[0], progress=progress)

    def told(done: int) -> None:
        progress(f"parts {name}", done, len(parts))

    return reduce(lambda one, other: one.merged(other), each_part(work, parts, executor=executor, told=told))


def _check_ids(summary: LogSummary, *, parts: Sequence[LogPart]) -> None:
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


def _check_summary(summary: LogSummary, *, since: float | None, log: str, empty: InvalidInput | None) -> None:
    """Raises InvalidInput for a log without rows, rows without the times asked for, and a segment that no row has."""
    left = summary.left_out
    check_times(kept=summary.rows, older=left.older, timeless=left.timeless, since=since, log=log)
    if not summary.rows:
        raise empty or InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    for name in summary.model.plan.segments:
        if not any(summary.fields[name]):
            raise InvalidInput(
                "no row has it", field=f"segment {name}", remedy="use tenant, version, policy or a key of the context"
            )


def baseline_of(plan: Plan, candidates: Sequence[CandidateSpec]) -> int | None:
    """The index of the candidate that is the baseline. Raises InvalidInput where it, or what is asked, cannot be."""
    names = [spec.name for spec in candidates]
    if plan.baseline in (None, LOGGED):
        return None
    if plan.baseline not in names:
        raise InvalidInput(
            f"{plan.baseline!r} is not judged",
            field="baseline",
            remedy=f"use {CURRENT}, {LOGGED}, or one of {', '.join(names)}",
        )
    return names.index(plan.baseline)
