"""Replay of a log in parts, by any engine that can apply a function to every part and merge what comes back.

    pass 0   per part: arms, bounds, columns of the file            -> arms and bounds of the log
    pass 1   per part: summary, keys of the ids, sums of the model  -> merged, checked, the reward model solved
    (tuning  per part: trials of every parameter                    -> merged, the best one chosen)
    pass 2   per part: sums of the estimates                        -> merged, the result

Sums are of float64: any cut gives the same numbers within 1e-9.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.estimators import Estimator
from ragbandit.router.offline.logs.parquet_arrays import LogOverview
from ragbandit.router.offline.logs.place import Place
from ragbandit.router.offline.logs.records import Defaults
from ragbandit.router.offline.replay.assemble import ResultAssembler
from ragbandit.router.offline.replay.candidates import CandidatePmf, CandidateSpec, baselines, described
from ragbandit.router.offline.replay.judge import (
    alpha_of,
    baseline_of,
    check_summary,
    notes_on,
    other_estimators,
    result_of,
)
from ragbandit.router.offline.replay.parts.engines import Engine, Job, Result
from ragbandit.router.offline.replay.parts.jobs import (
    MeasureJob,
    PartJob,
    PartSummary,
    keys_of_part,
    measure_part,
    merge_accumulators,
    merge_by_part,
    merge_summaries,
    merge_trials,
    overview_part,
    summarize_part,
    try_part,
)
from ragbandit.router.offline.replay.passes.measure import Accumulators, EstimationPlan
from ragbandit.router.offline.replay.plan import RIDGES, Plan
from ragbandit.router.offline.replay.results import ReplayResult
from ragbandit.router.offline.types import Keys, Progress, no_progress

__all__ = ["replay_parts"]

#: ids whose keys are compared at a time: 8 bytes each, in one process
MOST_KEYS = 1 << 27


def replay_parts(
    paths: Sequence[Place],
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
    run = _Run(engine=engine, progress=progress)
    overviews, featured = _opened(paths, defaults=defaults, run=run)
    arms = overviews[0].arms
    candidates = baselines(arms) if candidates is None else candidates
    baseline = baseline_of(plan, candidates)
    jobs = [
        PartJob(
            index=index,
            overview=overview,
            candidates=candidates,
            plan=plan,
            defaults=defaults,
            mixed_arms=mixed_arms,
            since=since,
            features=plan.reward_model != "mean" and featured,
            rounds=-(-sum(overview.rows for overview in overviews) // MOST_KEYS),
        )
        for index, overview in enumerate(overviews)
    ]
    first = run.reduce("parts summarized", summarize_part, jobs, merge=merge_summaries)
    _check_ids(first.keys, run=run, jobs=jobs)
    if first.fit.one_fold:
        plan = plan.by_decision()
        jobs = [replace(job, plan=plan) for job in jobs]
        first = run.reduce("parts summarized", summarize_part, jobs, merge=merge_summaries)
    check_summary(first.summary, plan=plan, since=since)
    first.fit.solve()
    estimation, sums = _judged(first, jobs=jobs, baseline=baseline, run=run)
    assembler = ResultAssembler(
        plan=plan,
        estimators=estimation.estimators,
        summary=first.summary,
        accumulators=sums,
        arms=arms,
        baseline=baseline,
        alpha=alpha_of(first.summary, arms=arms),
        sequences=None,
    )
    return result_of(
        assembler,
        candidates=candidates,
        candidate_pmfs=[CandidatePmf(described=described(spec)) for spec in candidates],
        log=log,
        logged=None,
        since=since,
        notes=(*notes, *notes_on(first.summary, plan=plan, featureless=not jobs[0].features)),
        skipped=(),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    engine: Engine
    progress: Progress

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


def _opened(paths: Sequence[Place], *, defaults: Defaults, run: _Run) -> tuple[list[LogOverview], bool]:
    """The parts that have rows, each with arms and bounds of the log; and whether all have features, of one encoder."""
    jobs = [(index, path, defaults) for index, path in enumerate(paths)]
    found = run.reduce("parts opened", overview_part, jobs, merge=merge_by_part)
    if not found:
        remedy = "give a log with at least one decision"
        raise InvalidInput(f"none of {len(paths)} files has rows", field="log", remedy=remedy)
    overviews = [found[index][0] for index in sorted(found)]
    encoders = {encoder for _, encoder in found.values()}
    return [overview.within(overviews) for overview in overviews], len(encoders) == 1 and encoders != {()}


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


def _judged(
    first: PartSummary, *, jobs: Sequence[PartJob], baseline: int | None, run: _Run
) -> tuple[EstimationPlan, Accumulators]:
    """The second pass, over the parts that have rows."""
    plan, summary = jobs[0].plan, first.summary
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
    told = [replace(job, estimation=estimation) for job in later]
    return estimation, run.reduce("parts judged", measure_part, told, merge=merge_accumulators)


def _estimators(plan: Plan, *, run: _Run, jobs: Sequence[MeasureJob]) -> list[Estimator]:
    """The estimator of each candidate; a parameter that is chosen on the log takes a pass of its own."""
    if not plan.tuned:
        return [Estimator.parse(plan.estimator)] * len(jobs[0].part.candidates)
    return [one.chosen("mse") for one in run.reduce("parameters tried", try_part, jobs, merge=merge_trials)]
