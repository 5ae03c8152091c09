"""The engine: folds the batches of a log into sums, in two passes, and the sums into results.

    pass 1   counts, weights, draws, keys of the ids; sums of the reward model     -> checked, the model solved
    pass 2   sums of the estimates, by segment                                     -> the result

A log has one part, or one for each of its files. Parts are read one after the other, or by the workers of an executor;
what they give is merged in the order of the files.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeVar

import numpy as np

from ragbandit.router.offline.estimation import ESTIMATORS, Estimator, Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import ALPHA, WeightTally
from ragbandit.router.offline.processes import each_part
from ragbandit.router.offline.replay.assemble import (
    ResultAssembler,
    arms_of,
    faults_of,
    noted,
    notes_on,
    others_largest,
)
from ragbandit.router.offline.replay.candidates import KEPT_BYTES, KeptPart, LeftOut, LogPart, Room
from ragbandit.router.offline.replay.comparison import LoggedPolicies
from ragbandit.router.offline.replay.opening import all_older, no_times
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    LOGGED,
    CandidatePmf,
    CandidateSpec,
    Plan,
    ReplayResult,
    Skipped,
)
from ragbandit.router.offline.replay.sums import (
    EstimationPlan,
    LogSummary,
    Model,
    RewardModelFit,
    ScoreColumns,
    ScoreSums,
    candidate_rows,
    shown_segments,
)
from ragbandit.shared.errors import InvalidInput

__all__ = ["ALPHA", "estimate_candidates"]

Job = TypeVar("Job")
Result = TypeVar("Result")

#: beside the estimator that was asked for, where it is not one of them
OTHERS = ("ips", "snips", "dm", "dr", "sndr")
#: rows per fold from which on estimators with a model are shown unasked
FEWEST_ROWS = 2
#: bad rows that are named
MOST_NAMED = 20


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
    passes = _Passes(parts=parts, executor=executor, progress=progress)
    first = passes.learned(plan, candidates=len(candidates))
    summary = first.summary
    _check_summary(first, plan=plan, since=since, log=log, empty=empty)
    _check_ids(summary, parts=parts)
    first.fit.solve()
    columns = ScoreColumns(
        estimator=Estimator(name=plan.estimator),
        candidates=len(summary.weights),
        others=_other_estimators(plan, modelled=summary.rows >= FEWEST_ROWS * plan.folds),
    )
    assembler = ResultAssembler(
        plan=plan,
        columns=columns,
        summary=summary,
        sums=passes.measured(first, columns=columns),
        baseline=baseline,
    )
    return _result(
        assembler,
        candidates=candidates,
        candidate_pmfs=[noted(one, spec, summary) for one, spec in zip(candidate_pmfs, candidates, strict=True)],
        log=log,
        logged=logged,
        since=since,
        notes=(*notes, *notes_on(summary, plan=plan, undrawn=first.left_out.undrawn)),
        skipped=skipped,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SummedPart:
    """What is known of some rows after the first pass."""

    summary: LogSummary
    fit: RewardModelFit
    left_out: LeftOut

    def merged(self, other: "SummedPart") -> "SummedPart":
        """Of both sets of rows."""
        return SummedPart(
            summary=self.summary.merged(other.summary),
            fit=self.fit.merged(other.fit),
            left_out=self.left_out + other.left_out,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Passes:
    """Passes over the parts, here or by an executor; what comes back is merged in the order of the parts."""

    parts: Sequence[LogPart]
    executor: Executor | None
    progress: Progress

    def learned(self, plan: Plan, *, candidates: int) -> SummedPart:
        """Summary and reward model."""
        work = partial(learn_part, plan=plan, candidates=candidates)
        return self._merged("summarized", work, SummedPart.merged, jobs=self.parts)

    def measured(self, first: SummedPart, *, columns: ScoreColumns) -> ScoreSums:
        """The sums of the estimates."""
        segments = {name: shown_segments(first.summary.fields[name]) for name in first.fit.plan.segments}
        estimation = EstimationPlan(columns=columns, rows=first.summary.rows, segments=segments)
        work = partial(measure_part, model=first.fit.predicted, middles=first.summary.middles, estimation=estimation)
        return self._merged("judged", work, ScoreSums.merged, jobs=self.parts)

    def _merged(
        self,
        name: str,
        work: Callable[..., Result],
        merge: Callable[[Result, Result], Result],
        *,
        jobs: Sequence[Job],
    ) -> Result:
        """The results of all jobs, merged. name: what is done to the rows, for progress."""
        if self.executor is None and len(jobs) == 1:
            return work(jobs[0], progress=self.progress)
        results = each_part(
            work, jobs, executor=self.executor, told=lambda done: self.progress(f"parts {name}", done, len(jobs))
        )
        return reduce(merge, results)


def learn_part(part: LogPart, *, plan: Plan, candidates: int, progress: Progress = no_progress) -> SummedPart:
    """The first pass over a part."""
    summary = LogSummary(weights=[WeightTally() for _ in range(candidates)])
    fit = RewardModelFit(plan=plan)
    for log in part.batches():
        summary.add(log)
        fit.learn(log)
        progress("rows summarized", summary.rows, 0)
    return SummedPart(summary=summary, fit=fit, left_out=part.left_out)


def measure_part(
    part: LogPart,
    *,
    model: Model,
    middles: Sequence[float],
    estimation: EstimationPlan,
    progress: Progress = no_progress,
) -> ScoreSums:
    """The second pass over a part."""
    row = 0
    sums = estimation.empty()
    for log in part.batches():
        estimation.add(sums, candidate_rows(log, model=model, middles=middles))
        row += len(log)
        progress("rows judged", row, estimation.rows)
    return sums


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


def _result(
    assembler: ResultAssembler,
    *,
    candidates: Sequence[CandidateSpec],
    candidate_pmfs: Sequence[CandidatePmf],
    log: str,
    logged: LoggedPolicies | None,
    since: float | None,
    notes: Sequence[str],
    skipped: Sequence[Skipped],
) -> ReplayResult:
    """The result of accumulated sums."""
    plan, summary = assembler.plan, assembler.summary
    #: chance that each check calls a right log wrong
    alpha = ALPHA / (1 + len(summary.names) + len(summary.weights))
    faults = faults_of(summary, candidates=candidates, alpha=alpha)
    assembler = replace(assembler, is_wrong=bool(faults))
    versions: Mapping[str, int] = summary.fields.get("version", {})
    reward, quality, cost = assembler.baseline_values()
    timed = summary.begin <= summary.end
    return ReplayResult(
        log=log,
        rows=summary.rows,
        begin=summary.begin if timed else None,
        end=summary.end if timed else None,
        since=since,
        plan=plan,
        baseline="the logged policy" if assembler.baseline is None else candidates[assembler.baseline].name,
        baseline_reward=reward,
        baseline_quality=quality,
        baseline_cost=cost,
        comparisons=assembler.compared,
        arms=arms_of(summary, alpha=alpha),
        sources=_sources(summary),
        versions=others_largest({name: rows for name, rows in versions.items() if name}),
        logged=() if logged is None else logged.of(versions),
        candidates=tuple(
            assembler.candidate(index, spec=spec, described=described, alpha=alpha)
            for index, (spec, described) in enumerate(zip(candidates, candidate_pmfs, strict=True))
        ),
        pairs=assembler.pairs(candidates),
        skipped_rows=len(skipped),
        skipped=tuple(skipped[:MOST_NAMED]),
        faults=faults,
        notes=tuple(notes),
    )


def _check_summary(first: SummedPart, *, plan: Plan, since: float | None, log: str, empty: InvalidInput | None) -> None:
    """Raises InvalidInput for a log without rows, rows without the times asked for, and a segment that no row has."""
    summary, left = first.summary, first.left_out
    if left.timeless:
        raise no_times(left.timeless, rows=summary.rows + left.older, log=log)
    if not summary.rows and left.older and since is not None:
        raise all_older(left.older, since=since, log=log)
    if not summary.rows:
        raise empty or InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    for name in plan.segments:
        if not any(summary.fields[name]):
            raise InvalidInput(
                "no row has it", field=f"segment {name}", remedy="use tenant, version, policy or a key of the context"
            )


def _other_estimators(plan: Plan, *, modelled: bool) -> list[str]:
    """The names of the estimators beside; without a model where the folds are too small to fit one."""
    names = [name for name in OTHERS if name != plan.estimator]
    return [name for name in names if modelled or not ESTIMATORS[name].needs_model]


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


def _sources(summary: LogSummary) -> Mapping[str, int]:
    counts = {"explicit": summary.rows - summary.defaulted, "default": summary.defaulted, "late": summary.late}
    return {name: count for name, count in counts.items() if count}
