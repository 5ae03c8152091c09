"""The engine: folds the batches of a log into sums, in two passes, and the sums into results.

    pass 1   counts, weights, draws, keys of the ids; sums of the reward model     -> checked, the model solved
    (tuning  trials of every parameter, where the estimator's is chosen on the log -> the best one chosen)
    pass 2   sums of the estimates, by segment and stretch of time                 -> the result

A log has one part, or one for each of its files. Parts are read one after the other, or by the workers of an executor;
what they give is merged in the order of the files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeVar

import numpy as np

from ragbandit.router.offline.estimation.anytime import sequences
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.estimation.diagnostics import ALPHA, WeightTally
from ragbandit.router.offline.estimation.estimators import ESTIMATORS, Estimator
from ragbandit.router.offline.estimation.tuning import Trials
from ragbandit.router.offline.logs.batches import UnevenFeatures
from ragbandit.router.offline.replay.assemble import ResultAssembler, arms_of, others_largest
from ragbandit.router.offline.replay.candidates import CandidatePmf
from ragbandit.router.offline.replay.notes import faults_of, noted, notes_on
from ragbandit.router.offline.replay.opening import all_older, no_times
from ragbandit.router.offline.replay.parts import Part, each_part
from ragbandit.router.offline.replay.plan import RIDGES, CandidateSpec, Plan
from ragbandit.router.offline.replay.results import ReplayResult, Skipped
from ragbandit.router.offline.replay.reward_model import Model, RewardModelFit, regressed
from ragbandit.router.offline.replay.service import LoggedPolicies
from ragbandit.router.offline.replay.sums import Accumulators, EstimationPlan, LogSummary, candidate_rows, measure
from ragbandit.router.offline.types import Progress, no_progress
from ragbandit.shared.errors import InvalidInput

__all__ = ["ALPHA", "CLIP", "judge"]

Job = TypeVar("Job")
Result = TypeVar("Result")

#: beside the estimator that was asked for, where it is not one of them
OTHERS = ("ips", "snips", "dm", "dr", "sndr")
#: rows per fold from which on estimators with a model are shown unasked
FEWEST_ROWS = 2
#: weights above it are counted
CLIP = 10.0
#: bad rows that are named
MOST_NAMED = 20


def judge(
    parts: Sequence[Part],
    *,
    candidates: Sequence[CandidateSpec],
    candidate_pmfs: Sequence[CandidatePmf],
    plan: Plan,
    log: str,
    logged: LoggedPolicies | None = None,
    since: float | None = None,
    notes: Sequence[str] = (),
    skipped: Sequence[Skipped] = (),
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> ReplayResult:
    """Judge these candidates, whose probabilities are in the parts of a log.

    candidate_pmfs: descriptions and notes of the candidates, in the same order. log: description of the source. logged:
    the policies of its store, where it has one. since: rows decided before this time are left out, seconds since the
    epoch. executor: reads the parts; None: this process, one after the other.
    Raises InvalidInput for a row that cannot be true, an empty log, a baseline that is no candidate.
    """
    baseline = baseline_of(plan, candidates)
    folded = _Folding(executor=executor, progress=progress)
    first = folded.first_pass(parts, plan=plan, candidates=len(candidates))
    plan, summary = first.plan, first.summary
    _check_summary(summary, plan=plan, since=since, log=log)
    _check_ids(first)
    passes = _LaterPasses(folded=folded, first=first, model=_model(first), middles=_middles(summary))
    estimation = EstimationPlan.of(
        summary,
        estimators=passes.estimators(),
        others=_other_estimators(plan, modelled=summary.rows >= FEWEST_ROWS * plan.folds),
        baseline=baseline,
        fields=plan.segments,
    )
    assembler = ResultAssembler(
        plan=plan,
        estimators=estimation.estimators,
        summary=summary,
        accumulators=passes.measured(estimation),
        baseline=baseline,
        alpha=ALPHA / (1 + len(summary.names) + len(summary.weights)),
        sequences=sequences(
            _all_rows(first.parts),
            rewards=summary.bounds(0),
            reward_model=None if plan.estimator == "ips" else plan.reward_model,
            confidence=plan.confidence,
            baseline=baseline,
            progress=progress,
        )
        if plan.anytime
        else None,
    )
    return _result(
        assembler,
        candidates=candidates,
        candidate_pmfs=[noted(one, spec, summary) for one, spec in zip(candidate_pmfs, candidates, strict=True)],
        log=log,
        logged=logged,
        since=since,
        notes=(*notes, *notes_on(summary, plan=plan)),
        skipped=skipped,
    )


@dataclass(kw_only=True)
class _FirstPass:
    """What the first pass found."""

    parts: Sequence[Part]
    plan: Plan
    summary: LogSummary
    fit: RewardModelFit
    #: rows of each part
    rows: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Folding:
    """Applies work to all parts, here or by an executor; what comes back is merged in the order of the parts."""

    executor: Executor | None
    progress: Progress

    def each(self, name: str, work: Callable[..., Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """The results. name: of the work, for progress: of the rows of one part, or of the parts."""
        if self.executor is None and len(jobs) == 1:
            yield work(jobs[0], progress=self.progress)
            return
        yield from each_part(
            work, jobs, executor=self.executor, told=lambda done: self.progress(f"parts {name}", done, len(jobs))
        )

    def first_pass(self, parts: Sequence[Part], *, plan: Plan, candidates: int) -> _FirstPass:
        """Summary and reward model; without features where not all rows have them, by one encoder."""
        try:
            first = self._learned(parts, plan=plan, candidates=candidates)
        except UnevenFeatures:
            parts = [part.without_features() for part in parts]
            first = self._learned(parts, plan=plan, candidates=candidates)
        if first.fit.one_fold:  # no other fold could teach it
            return self._learned(parts, plan=plan.by_decision(), candidates=candidates)
        return first

    def _learned(self, parts: Sequence[Part], *, plan: Plan, candidates: int) -> _FirstPass:
        found: _FirstPass | None = None
        for summary, fit in self.each("summarized", partial(learn_part, plan=plan, candidates=candidates), parts):
            if found is None:
                found = _FirstPass(parts=parts, plan=plan, summary=summary, fit=fit, rows=[summary.rows])
                continue
            found.summary = found.summary.merged(summary)
            _check_kinds(found.summary)
            found.fit = found.fit.merged(fit)
            found.rows.append(summary.rows)
        assert found is not None
        return found


def learn_part(
    part: Part, *, plan: Plan, candidates: int, progress: Progress = no_progress
) -> tuple[LogSummary, RewardModelFit]:
    """The first pass over a part."""
    summary = LogSummary(weights=[WeightTally(clip=CLIP) for _ in range(candidates)])
    fit = RewardModelFit(plan=plan)
    for log in part.batches(first_pass=True):
        summary.add(log)
        _check_kinds(summary)
        fit.learn(log)
        progress("rows summarized", summary.rows, 0)
    summary.left_out = part.left_out
    return summary.closed(), fit


def _check_kinds(summary: LogSummary) -> None:
    """Raises UnevenFeatures where features are not of one kind."""
    if len(summary.kinds) > 1:
        raise UnevenFeatures


def _model(first: _FirstPass) -> Model:
    if first.plan.reward_model not in RIDGES:
        return regressed(first.plan, logs=_all_rows(first.parts))
    first.fit.solve()
    return first.fit.predicted


def _all_rows(parts: Sequence[Part]) -> list[Log]:
    """All rows, in memory: for what needs them in their order."""
    return [log for part in parts for log in part.batches(first_pass=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _LaterPasses:
    """The passes that need the first one's result."""

    folded: _Folding
    first: _FirstPass
    model: Model
    #: of the ranges of reward, quality and cost
    middles: Sequence[float]

    def estimators(self) -> Sequence[Estimator]:
        """The estimator of each candidate; a parameter that is chosen on the log takes a pass of its own."""
        plan = self.first.plan
        if not plan.tuned:
            return [Estimator.parse(plan.estimator)] * len(self.first.summary.weights)
        tries = self._merged("tried", partial(try_part, name=plan.estimator), _merged_trials)
        return [one.chosen("mse") for one in tries]

    def measured(self, estimation: EstimationPlan) -> Accumulators:
        """The sums of the estimates."""
        return self._merged("judged", partial(measure_part, estimation=estimation), Accumulators.merged)

    def _merged(self, name: str, work: Callable[..., Result], merge: Callable[[Result, Result], Result]) -> Result:
        starts = np.cumsum([0, *self.first.rows]).tolist()
        jobs = [
            (part, start) for part, start, rows in zip(self.first.parts, starts, self.first.rows, strict=False) if rows
        ]
        work = partial(work, model=self.model, middles=self.middles)
        return reduce(merge, self.folded.each(name, work, jobs))


def try_part(
    job: tuple[Part, int], *, model: Model, middles: Sequence[float], name: str, progress: Progress = no_progress
) -> list[Trials]:
    """For each candidate the trials of every parameter of this estimator."""
    part, _ = job
    tries: list[Trials] = []
    rows = 0
    for log in part.batches(first_pass=False):
        more = [one.trials(name) for one in candidate_rows(log, model=model, middles=middles)]
        tries = _merged_trials(tries, more) if tries else more
        rows += len(log)
        progress("parameters tried", rows, 0)
    return tries


def _merged_trials(one: list[Trials], other: list[Trials]) -> list[Trials]:
    return [mine.merged(theirs) for mine, theirs in zip(one, other, strict=True)]


def measure_part(
    job: tuple[Part, int],
    *,
    model: Model,
    middles: Sequence[float],
    estimation: EstimationPlan,
    progress: Progress = no_progress,
) -> Accumulators:
    """The second pass over a part, before which the log has so many rows."""
    part, row = job
    sums = estimation.empty()
    for log in part.batches(first_pass=False):
        measure(sums, candidate_rows(log, model=model, middles=middles), plan=estimation, first_row=row)
        row += len(log)
        progress("rows judged", row, estimation.rows)
    return sums


def _check_ids(first: _FirstPass) -> None:
    """Raises InvalidInput for an id that stands in two rows: its decision would count twice."""
    keys = np.sort(np.concatenate(first.summary.keys))
    again = keys[1:][keys[1:] == keys[:-1]]
    if len(again):
        names = [name for part in first.parts for name in part.names_of(again[0])]
        raise InvalidInput(
            f"has the id of {names[0]}; {len(again)} rows repeat an id",
            field=f"{names[-1]} id",
            remedy="log every decision once; a row that is in two files would count twice",
        )


def _middles(summary: LogSummary) -> list[float]:
    """Middles of the ranges of reward, quality and cost."""
    return [(low + high) / 2.0 for low, high in (summary.bounds(target) for target in range(3))]


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
        baseline="the logged policy" if assembler.baseline is None else plan.baseline,
        baseline_reward=reward,
        baseline_quality=quality,
        baseline_cost=cost,
        comparisons=assembler.compared,
        arms=arms_of(summary, alpha=assembler.alpha),
        sources=_sources(summary),
        versions=others_largest({name: rows for name, rows in versions.items() if name}),
        logged=() if logged is None else logged.of(versions),
        candidates=tuple(
            assembler.candidate(index, spec=spec, described=described)
            for index, (spec, described) in enumerate(zip(candidates, candidate_pmfs, strict=True))
        ),
        pairs=assembler.pairs([spec.name for spec in candidates]),
        skipped_rows=len(skipped),
        skipped=tuple(skipped[:MOST_NAMED]),
        faults=faults_of(summary, candidates=candidates, alpha=assembler.alpha),
        notes=tuple(notes),
    )


def _check_summary(summary: LogSummary, *, plan: Plan, since: float | None, log: str) -> None:
    """Raises InvalidInput for a log without rows, rows without the times asked for, and a segment that no row has."""
    left = summary.left_out
    if left.timeless:
        raise no_times(left.timeless, rows=summary.rows + left.older, log=log)
    if not summary.rows and left.older and since is not None:
        raise all_older(left.older, since=since, log=log)
    if not summary.rows:
        raise InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    for name in plan.segments:
        if not any(summary.fields[name]):
            raise InvalidInput(
                "no row has it", field=f"segment {name}", remedy="use tenant, version, policy or a key of the context"
            )


def _other_estimators(plan: Plan, *, modelled: bool) -> list[Estimator]:
    """The estimators beside; without a model where the folds are too small to fit one."""
    names = [name for name in OTHERS if name != plan.estimator]
    return [Estimator(name=name) for name in names if modelled or not ESTIMATORS[name].needs_model]


def baseline_of(plan: Plan, candidates: Sequence[CandidateSpec]) -> int | None:
    """The index of the candidate that is the baseline. Raises InvalidInput where it, or what is asked, cannot be."""
    if plan.anytime and not plan.learn and any(spec.learns for spec in candidates):
        raise InvalidInput(
            "a policy that learned later rows too has no interval that holds at every look",
            field="anytime",
            remedy="give --learn as well, or judge snapshots",
        )
    names = [spec.name for spec in candidates]
    if plan.baseline == "logged":
        return None
    if plan.baseline not in names:
        raise InvalidInput(
            f"{plan.baseline!r} is not judged", field="baseline", remedy=f"use logged, or one of {', '.join(names)}"
        )
    return names.index(plan.baseline)


def _sources(summary: LogSummary) -> Mapping[str, int]:
    counts = {"explicit": summary.rows - summary.defaulted, "default": summary.defaulted, "late": summary.late}
    return {name: count for name, count in counts.items() if count}
