"""Replay of a log in parts, by any engine that can apply a function to every part and merge what comes back.

    pass 0   per part: arms, bounds, columns of the file            -> arms and bounds of the log
    pass 1   per part: summary, keys of the ids, sums of the model  -> merged, checked, the reward model solved
    (tuning  per part: trials of every parameter                    -> merged, the best one chosen)
    pass 2   per part: sums of the estimates                        -> merged, the result

Every sum is exact (`estimation.exact_sums`), so that neither the cut nor the order of the merges can be seen in the
result. Functions, jobs and what they return can be pickled; merging changes neither side, so that an engine may repeat
any step that was lost.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.estimators import Estimator
from ragbandit.router.offline.estimation.gram_sums import HEAD, Scales, scales_of
from ragbandit.router.offline.estimation.tuning import Trials
from ragbandit.router.offline.logs.parquet_arrays import LogOverview, overview_of, read_keys
from ragbandit.router.offline.logs.records import Defaults
from ragbandit.router.offline.replay.assemble import ResultAssembler
from ragbandit.router.offline.replay.candidates import CandidatePmf, CandidateSpec, baselines, described
from ragbandit.router.offline.replay.judge import (
    CLIP,
    alpha_of,
    baseline_of,
    check_summary,
    middles_of,
    notes_on,
    other_estimators,
    result_of,
)
from ragbandit.router.offline.replay.measure import (
    Accumulators,
    EstimationPlan,
    LogSummary,
    Views,
    measure,
    summarize,
    tuned,
)
from ragbandit.router.offline.replay.parquet_source import ParquetPieces, encoders_of
from ragbandit.router.offline.replay.plan import RIDGES, Plan
from ragbandit.router.offline.replay.results import ReplayResult
from ragbandit.router.offline.replay.reward_model import RewardModelFit
from ragbandit.router.offline.types import Keys, Progress, no_progress
from ragbandit.router.types import FeatureRows

__all__ = ["Engine", "SerialEngine", "replay_parts"]

Job = TypeVar("Job")
Result = TypeVar("Result")

#: ids whose keys are compared at a time: 8 bytes each, in one process
MOST_KEYS = 1 << 27


class Engine(Protocol):
    """What applies a function to all parts."""

    def reduce(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        merge: Callable[[Result, Result], Result],
        told: Callable[[int], None],
    ) -> Result:
        """The results of all jobs (one at least), merged in any order; told: how many jobs are done.

        `work` and `merge` may run in other processes, and again where one was lost. What they raise is raised here.
        """
        ...


class SerialEngine:
    """One part after the other, in this process."""

    def reduce(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        merge: Callable[[Result, Result], Result],
        told: Callable[[int], None],
    ) -> Result:
        """As `Engine` says."""

        def results() -> Iterator[Result]:
            for done, job in enumerate(jobs, start=1):
                yield work(job)
                told(done)

        return reduce(merge, results())


@dataclass(frozen=True, kw_only=True, slots=True)
class PartJob:
    """A part, and all that is asked of it."""

    index: int
    overview: LogOverview
    candidates: Sequence[CandidateSpec]
    plan: Plan
    defaults: Defaults
    mixed_arms: bool
    since: float | None
    features: bool
    scales: Scales | None = None
    #: keys of ids are compared in so many rounds, by their remainder
    rounds: int = 1

    def pieces(self) -> ParquetPieces:
        """Its rows."""
        return ParquetPieces(
            path=self.overview.path,
            candidates=self.candidates,
            plan=self.plan,
            defaults=self.defaults,
            mixed_arms=self.mixed_arms,
            since=self.since,
            overview=self.overview,
            features=self.features,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSummary:
    """Summary of parts, from the first pass."""

    summary: LogSummary
    fit: RewardModelFit
    #: part -> rows that are judged
    rows: dict[int, int]
    #: part -> keys of the ids, for the first round
    keys: dict[int, Keys]

    def merged(self, other: "PartSummary") -> "PartSummary":
        """That of both."""
        return PartSummary(
            summary=self.summary.merged(other.summary),
            fit=self.fit.merged(other.fit),
            rows=self.rows | other.rows,
            keys=self.keys | other.keys,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureJob:
    """What the later passes ask of a part."""

    part: PartJob
    fit: RewardModelFit
    summary: LogSummary
    first_row: int
    estimation: EstimationPlan | None = None

    def views(self) -> Views:
        """Its pieces with the probabilities of every candidate."""
        return Views(pieces=self.part.pieces(), model=self.fit.predicted, middles=middles_of(self.summary))


def overview_part(job: tuple[int, Path, Defaults]) -> dict[int, tuple[LogOverview, tuple[str, ...]]]:
    """Overview of a file and the encoder of its features."""
    index, path, defaults = job
    return {index: (overview_of(path, defaults=defaults), encoders_of(path))}


def summarize_part(job: PartJob) -> PartSummary:
    """The first pass over a part."""
    fit, pieces, path = RewardModelFit(plan=job.plan, scales=job.scales), job.pieces(), job.overview.path
    with naming_part(path):
        summary = summarize(pieces, candidates=len(job.candidates), clip=CLIP, learn=fit.learn, progress=no_progress)
    keys = np.concatenate(pieces.keys)
    return PartSummary(
        summary=summary, fit=fit, rows={job.index: summary.rows}, keys={job.index: _of_round(keys, 0, job.rounds)}
    )


@contextmanager
def naming_part(path: Path) -> Iterator[None]:
    """Errors about a row name the file too."""
    try:
        yield
    except InvalidInput as error:
        said = str(error.field or "")
        field = said if str(path) in said else f"{path} {said}"
        raise InvalidInput(error.message, field=field, remedy=error.remedy) from error


def keys_of_part(job: tuple[int, Path, int, int]) -> dict[int, Keys]:
    """The keys of a part's ids of one round."""
    index, path, number, rounds = job
    return {index: np.concatenate([_of_round(keys, number, rounds) for keys in read_keys(path)])}


def _of_round(keys: Keys, number: int, rounds: int) -> Keys:
    # By high bits: the low ones choose the folds.
    return keys if rounds == 1 else keys[(keys >> np.uint64(32)) % np.uint64(rounds) == number]


def try_part(job: MeasureJob) -> list[Trials]:
    """Trials of every parameter on a part."""
    rows = job.summary.rows
    return tuned(job.views(), name=job.part.plan.estimator, rows=rows, progress=no_progress)


def measure_part(job: MeasureJob) -> Accumulators:
    """The second pass over a part."""
    assert job.estimation is not None
    return measure(
        job.views(),
        summary=job.summary,
        estimation=job.estimation,
        fields=job.part.plan.segments,
        progress=no_progress,
        first_row=job.first_row,
    )


def merge_summaries(one: PartSummary, other: PartSummary) -> PartSummary:
    """Of two sets of parts."""
    return one.merged(other)


def merge_trials(one: list[Trials], other: list[Trials]) -> list[Trials]:
    """Of two sets of parts."""
    return [mine.merged(theirs) for mine, theirs in zip(one, other, strict=True)] if one and other else one or other


def merge_accumulators(one: Accumulators, other: Accumulators) -> Accumulators:
    """Of two sets of parts."""
    return one.merged(other)


def merge_by_part(one: dict[int, Result], other: dict[int, Result]) -> dict[int, Result]:
    """What was found, by part."""
    return one | other


def replay_parts(
    paths: Sequence[Path],
    *,
    candidates: Sequence[CandidateSpec] | None,
    plan: Plan,
    defaults: Defaults,
    mixed_arms: bool,
    since: float | None,
    log: str,
    engine: Engine,
    notes: Sequence[str] = (),
    progress: Progress = no_progress,
) -> ReplayResult:
    """Judge candidates on a log that lies in several Parquet files, in the order given.

    candidates: None: each arm of the log, and uniform. log: description of the source. Raises InvalidInput for what
    cannot be judged in parts, and as `replay` does.
    """
    _check_parts(plan, candidates=candidates)
    run = _Run(engine=engine, progress=progress, parts=len(paths))
    found = run.reduce(
        "parts opened", overview_part, [(i, path, defaults) for i, path in enumerate(paths)], merge=merge_by_part
    )
    overviews = [found[index][0] for index in range(len(paths))]
    encoders = {found[index][1] for index in range(len(paths))}
    whole = overviews[0].within(overviews)
    candidates = baselines(whole.arms) if candidates is None else candidates
    baseline = baseline_of(plan, candidates)
    rounds = -(-sum(overview.rows for overview in overviews) // MOST_KEYS)
    jobs = [
        PartJob(
            index=index,
            overview=overview.within(overviews),
            candidates=candidates,
            plan=plan,
            defaults=defaults,
            mixed_arms=mixed_arms,
            since=since,
            features=plan.reward_model != "mean" and len(encoders) == 1 and encoders != {()},
            rounds=rounds,
        )
        for index, overview in enumerate(overviews)
    ]
    scales = _scales(jobs)
    jobs = [replace(job, scales=scales) for job in jobs]
    first = run.reduce("parts summarized", summarize_part, jobs, merge=merge_summaries)
    _check_ids(first.keys, run=run, jobs=jobs)
    summary = first.summary
    check_summary(summary, plan=plan, since=since)
    first.fit.solve()
    brief = replace(summary, fields={name: summary.fields[name] for name in plan.segments})
    starts = np.cumsum([0, *(first.rows[job.index] for job in jobs)])
    later = [
        MeasureJob(part=job, fit=first.fit, summary=brief, first_row=int(start))
        for job, start in zip(jobs, starts, strict=False)
        if first.rows[job.index]
    ]
    estimation = EstimationPlan(
        estimators=_estimators(plan, run=run, jobs=later),
        others=other_estimators(plan, modelled=summary.rows >= 2 * plan.folds),
        baseline=baseline,
    )
    sums = run.reduce(
        "parts judged", measure_part, [replace(job, estimation=estimation) for job in later], merge=merge_accumulators
    )
    assembler = ResultAssembler(
        plan=plan,
        estimators=estimation.estimators,
        summary=summary,
        accumulators=sums,
        arms=whole.arms,
        baseline=baseline,
        alpha=alpha_of(summary, arms=whole.arms),
        sequences=None,
    )
    return result_of(
        assembler,
        candidates=candidates,
        candidate_pmfs=[CandidatePmf(described=described(spec)) for spec in candidates],
        log=log,
        since=since,
        notes=(*notes, *notes_on(summary, plan=plan, featureless=not jobs[0].features)),
        skipped=(),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    engine: Engine
    progress: Progress
    parts: int

    def reduce(
        self,
        name: str,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        return self.engine.reduce(work, jobs, merge=merge, told=lambda done: self.progress(name, done, len(jobs)))


def _check_parts(plan: Plan, *, candidates: Sequence[CandidateSpec] | None) -> None:
    """Raises InvalidInput, with the reason, for what is no sum over the rows."""
    remedy = "give it one file"
    if plan.anytime:
        raise InvalidInput(
            "needs all rows in their order: a bet depends on those before", field="anytime", remedy=remedy
        )
    if plan.learn:
        raise InvalidInput("a policy that learns along the log needs all rows in order", field="learn", remedy=remedy)
    if plan.reward_model not in RIDGES:
        raise InvalidInput(
            f"{plan.reward_model} is fitted to all rows at once, and its fits cannot be merged",
            field="reward_model",
            remedy=f"use {', '.join(RIDGES)}, or one file",
        )
    for spec in candidates or ():
        if spec.needs_rows:
            kind = (
                "learns from all rows in order" if spec.learns else "is asked about questions, which parts do not read"
            )
            raise InvalidInput(
                f"{spec.name} {kind}", field="policy", remedy="judge it on one file, or log its pmf as a column"
            )


def _scales(jobs: Sequence[PartJob]) -> Scales:
    """Of the features' columns, from the first rows of the log."""
    if not jobs[0].features:
        return scales_of(np.zeros((0, 0)))
    head: list[FeatureRows] = []
    for job in jobs:
        with naming_part(job.overview.path):
            head += job.pieces().head(HEAD)
        if sum(map(len, head)) >= HEAD:
            break
    return scales_of(np.concatenate(head) if head else np.zeros((0, 0)))


def _check_ids(keys: dict[int, Keys], *, run: _Run, jobs: Sequence[PartJob]) -> None:
    """Raises InvalidInput for an id that stands in two parts; within one it was refused before."""
    rounds = jobs[0].rounds
    for number in range(rounds):
        if number:
            work = [(job.index, job.overview.path, number, rounds) for job in jobs]
            keys = run.reduce("ids compared", keys_of_part, work, merge=merge_by_part)
        every = np.sort(np.concatenate([keys[job.index] for job in jobs]))
        again = every[1:][every[1:] == every[:-1]]
        if len(again):
            paths = [str(job.overview.path) for job in jobs if (keys[job.index] == again[0]).any()]
            raise InvalidInput(
                f"{len(again)} ids stand in two parts, one of them in {' and '.join(paths[:2])}",
                field="id",
                remedy="log every decision once; a row that is in two files would count twice",
            )


def _estimators(plan: Plan, *, run: _Run, jobs: Sequence[MeasureJob]) -> list[Estimator]:
    """The estimator of each candidate; a parameter that is chosen on the log takes a pass of its own."""
    if not plan.tuned:
        return [Estimator.parse(plan.estimator)] * len(jobs[0].part.candidates)
    return [one.chosen("mse") for one in run.reduce("parameters tried", try_part, jobs, merge=merge_trials)]
