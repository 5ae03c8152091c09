"""The engine: sums the batches of a log in two passes, and makes results of the sums.

    pass 1   counts, weights, draws, hashes of ids; sums of the reward model     -> checks, solved model
    pass 2   sums of the estimates, by segment                                   -> results

A log has a part per file. Threads or an executor read the parts, and their sums are merged in the order of the files.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import Estimator, Progress, Tally, no_progress
from ragbandit.router.offline.logs import BadRow
from ragbandit.router.offline.processes import cores
from ragbandit.router.offline.replay.assemble import ResultAssembler
from ragbandit.router.offline.replay.candidates import MemoryLog, current_settings
from ragbandit.router.offline.replay.opening import OpenLog
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    LOGGED,
    CandidatePmf,
    CandidateSpec,
    LoggedPolicies,
    Plan,
    ReplayResult,
    ResolvedPlan,
    described,
)
from ragbandit.router.offline.replay.prepare import MakeEncoder, prepare
from ragbandit.router.offline.replay.sums import (
    LogPart,
    LogSummary,
    Scores,
    ScoreSums,
    SourcePart,
    certain_start,
    check_ids,
    check_summary,
    learn_part,
    measure_part,
    shown_segments,
)
from ragbandit.router.serving.setup.bootstrap import encoder_of
from ragbandit.shared.errors import InvalidInput

Sums = TypeVar("Sums", bound=Tally)

#: rows per fold from which on estimators with a model are shown unasked
FEWEST_ROWS = 2
#: bytes of arrays that are kept from one pass to the next, of all parts
KEPT_BYTES: Final = 1 << 28
_ONE_FILE: Final = "give it one file"


def replay(
    log: OpenLog | MemoryLog,
    *,
    candidates: Sequence[str | CandidateSpec] | None = None,
    plan: Plan | None = None,
    settings: Settings | None = None,
    encoder: MakeEncoder | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> ReplayResult:
    """Judge candidates on a log.

    log: from `open_log`, or rows in memory from `memory_log`. An opened log is read in batches that need not fit in
    memory, unless a candidate or the baseline reads questions.
    candidates: names as for `ragbandit replay --policy`, or specs; None for each arm of the log, and uniform.
    plan: default Plan().
    settings: the service's: floors, cold start, incumbent and fallback of policies and snapshots, and the folders of
    snapshots and cached features; default those of the opened log.
    encoder: makes the encoder for rows without features of this encoder; default the configured one for an opened log.
    executor: judges the files of a folder or a pattern, such as Dask's `Client.get_executor()`; default threads.
    Raises InvalidInput, ConfigError, StoreError or SnapshotError if the candidates cannot be judged.
    """
    if isinstance(log, OpenLog):
        settings = settings or log.settings
        encoder = encoder or partial(encoder_of, settings)
    settings = settings or Settings()
    resolved = ResolvedPlan.of(candidates, plan=replace(plan or Plan(), usual_weight=settings.reward.weight))
    judging = partial(estimate_candidates, executor=executor, progress=progress)
    if isinstance(log, OpenLog):
        check_spread(log, resolved=resolved)
        if not resolved.reads_text:
            return _replay_sources(log, resolved=resolved, judging=judging)
        # A snapshot needs all rows: questions that it learned are not judged.
        frozen = any(spec.kind == "snapshot" for spec in resolved.candidates or ())
        log = log.read(progress, older=frozen, sample=0 if frozen else resolved.plan.sample)
    current = current_settings(log, resolved=resolved, settings=settings)
    resolved = resolved.completed(arms=log.log.arms, current=current)
    plan, specs = resolved.plan, resolved.candidates or ()
    ready = prepare(log, candidates=specs, plan=plan, settings=settings, encoder=encoder, progress=progress)
    return judging(
        [ready.part()],
        plan=plan,
        candidates=specs,
        candidate_pmfs=ready.candidate_pmfs,
        log=log.described,
        logged=log.logged,
        since=log.since,
        notes=ready.notes,
        skipped=log.skipped,
        sampled_from=log.sampled_from,
    )


def _replay_sources(log: OpenLog, *, resolved: ResolvedPlan, judging: Callable[..., ReplayResult]) -> ReplayResult:
    """Judge candidates on a log that need not fit in memory."""
    skipped: list[BadRow] = []
    own = [spec.what for spec in resolved.candidates or () if spec.kind == "column"]
    with log.sources(own=own, skipped=skipped) as sources:
        arms = log.arms(sources)
        resolved = resolved.completed(arms=arms)
        plan, specs = resolved.plan, resolved.candidates or ()
        part = partial(SourcePart, candidates=specs, plan=plan, arms=arms, mixed_arms=log.mixed_arms, since=log.since)
        parts = [part(source=source) for source in sources]
        starts = certain_start([each.read() for each in parts])
        return judging(
            [replace(each, early=early) for each, early in zip(parts, starts, strict=True)],
            plan=plan,
            candidates=specs,
            candidate_pmfs=[CandidatePmf(described=described(spec)) for spec in specs],
            log=log.described,
            logged=log.policies(),
            since=log.since,
            skipped=skipped,
        )


def check_spread(log: OpenLog, *, resolved: ResolvedPlan) -> None:
    """Raises InvalidInput for requests that several files do not allow."""
    if not log.several:
        return
    if resolved.plan.learn or resolved.plan.baseline == CURRENT:
        field = "learn" if resolved.plan.learn else "baseline"
        raise InvalidInput("what learns from all rows in order is judged on one file", field=field, remedy=_ONE_FILE)
    for spec in resolved.candidates or ():
        if spec.needs_rows:
            reason = f"{spec.name} reads questions, which are not read of several files"
            raise InvalidInput(reason, field="policy", remedy=f"{_ONE_FILE}, or log its pmf as a column")


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
    skipped: Sequence[BadRow] = (),
    sampled_from: int | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> ReplayResult:
    """Judge candidates whose probabilities are in the parts of a log.

    candidate_pmfs: descriptions and notes of the candidates, in the same order.
    log: description of the source. logged: the policies of its store, if it has one.
    since: earlier decisions are left out, seconds since the epoch. sampled_from: rows of the log, for a sample.
    executor: reads the parts; default threads of this process.
    Raises InvalidInput for an impossible row, an empty log, or an unknown baseline.
    """
    baseline = baseline_of(plan, candidates)
    if executor is None:
        parts = [replace(part, room=KEPT_BYTES // len(parts)) for part in parts]
    merged = partial(_merged, parts=parts, executor=executor, progress=progress)
    learn = partial(learn_part, plan=plan, candidates=len(candidates), baseline=baseline)
    summary: LogSummary = merged("summarized", learn)
    check_summary(summary, since=since, log=log)
    check_ids(summary, parts=parts)
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
    return assembler.result(
        candidate_pmfs,
        log=log,
        logged=logged or {},
        since=since,
        notes=notes,
        skipped=skipped,
        sampled_from=sampled_from,
    )


def _merged(
    name: str, work: Callable[..., Sums], parts: Sequence[LogPart], *, executor: Executor | None, progress: Progress
) -> Sums:
    """The sums of a pass over all parts, in their order. name: what happens to the rows, for progress."""
    if executor is None and len(parts) == 1:
        return work(parts[0], progress=progress)
    merged: Sums | None = None
    threads = ThreadPoolExecutor(min(cores(), len(parts)), thread_name_prefix="replay")
    with threads if executor is None else nullcontext(executor) as pool:
        try:
            for done, sums in enumerate(pool.map(work, parts), start=1):
                merged = sums if merged is None else merged.merged(sums)
                progress(f"parts {name}", done, len(parts))
        except BaseException:  # on Ctrl-C, threads end after their batch, not after their file
            for part in parts:
                part.stopped = True
            raise
    assert merged is not None, "a log has at least one part"
    return merged


def baseline_of(plan: Plan, candidates: Sequence[CandidateSpec]) -> int | None:
    """The index of the candidate that is the baseline, None for the logged policy. Raises InvalidInput."""
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
