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
from typing import Final, TypeVar

import numpy as np

from ragbandit.router.offline.estimation import Estimator, Progress, Tally, no_progress
from ragbandit.router.offline.estimation.bandit_log import Log, WeightTally
from ragbandit.router.offline.logs.batches import BatchSpec, LogSource, decoded, drawn_rows, row_named
from ragbandit.router.offline.logs.parquet import BATCH
from ragbandit.router.offline.processes import each_part
from ragbandit.router.offline.replay.assemble import ResultAssembler
from ragbandit.router.offline.replay.opening import check_times
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    LOGGED,
    CandidatePmf,
    CandidateSpec,
    LoggedPolicies,
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


@dataclass(kw_only=True)
class LogPart:
    """A log or a part of it, in its order, as often as it is asked for."""

    #: of its rows, for messages
    place: str = "row"
    #: the arrays, where they are in memory
    kept: list[Log] | None = None
    #: bytes of arrays that may stay in memory from one pass to the next: it is read once then
    room: int = 0
    #: rows that the last pass left out
    left_out: LeftOut = field(default_factory=LeftOut)

    def batches(self) -> Iterator[Log]:
        """Some rows at a time, with what every candidate does on them."""
        if self.kept is not None:
            yield from self.kept
            return
        kept: list[Log] = []
        used = 0
        for log in self.read():
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


def memory_part(log: Log, *, undrawn: int = 0) -> LogPart:
    """The arrays of a whole log in memory, a batch at a time; they were checked when they were made."""
    kept = [log.part(slice(start, start + BATCH)) for start in range(0, len(log), BATCH)]
    return LogPart(kept=kept, left_out=LeftOut(undrawn=undrawn))


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
            if len(log):
                yield log


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
        parts = [replace(part, room=KEPT_BYTES // len(parts)) for part in parts]
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
    return assembler.result(candidate_pmfs, log=log, logged=logged or {}, since=since, notes=notes, skipped=skipped)


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
