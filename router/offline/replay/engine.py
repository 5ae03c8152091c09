"""Replays a log in two passes. The first sums counts and weights, and learns the reward model; the second estimates.

A log has one part per file. Threads or an executor read the parts; their sums are merged in the order of the files.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import Progress, Tally, no_progress
from ragbandit.router.offline.estimation.bandit_log import BY_FEATURES, BY_ID, BY_TEXT
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
    array_pmf,
    baselines,
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
    check_times,
    learn_part,
    measure_part,
    memory_part,
    shown_segments,
)
from ragbandit.router.serving.setup.bootstrap import encoder_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Matrix

Sums = TypeVar("Sums", bound=Tally)

#: maximum bytes of arrays that stay in memory between the passes, for all parts together
KEPT_BYTES: Final = 1 << 28
#: the result has a note if the number of different questions is at most this share of the rows
FRESH: Final = 0.8
_ONE_FILE: Final = "replay one file"


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

    log: from `open_log`, or rows in memory from `memory_log`. An opened log is read in batches, so it need not fit in
    memory, unless a candidate or the baseline reads questions.
    candidates: names as for `ragbandit replay --policy`, or specs; None for each arm of the log, and uniform.
    plan: default Plan().
    settings: settings of the service. They give floors, cold start, incumbent, fallback of policies and snapshots, and
    folders of snapshots and cached features. Default: the settings of the opened log.
    encoder: makes the encoder for rows without usable features; default for an opened log: the configured encoder.
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
        # With a snapshot all rows are read, to find the questions that it has learned: these are not judged.
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
    skipped: list[BadRow] = []
    with log.sources(skipped=skipped) as sources:
        arms = log.arms(sources)
        resolved = resolved.completed(arms=arms)
        plan, specs = resolved.plan, resolved.candidates or ()
        common: dict[str, Any] = {"candidates": specs, "plan": plan, "arms": arms, "mixed_arms": log.mixed_arms}
        parts = [SourcePart(source=source, since=log.since, **common) for source in sources]
        starts = certain_start([part.read() for part in parts])
        return judging(
            [replace(part, early=early) for part, early in zip(parts, starts, strict=True)],
            plan=plan,
            candidates=specs,
            candidate_pmfs=[CandidatePmf(described=described(spec)) for spec in specs],
            log=log.described,
            logged=log.policies(),
            since=log.since,
            skipped=skipped,
        )


def check_spread(log: OpenLog, *, resolved: ResolvedPlan) -> None:
    if not log.several:
        return
    if resolved.plan.learn or resolved.plan.baseline == CURRENT:
        field = "learn" if resolved.plan.learn else "baseline"
        message = "a policy that learns the log cannot be judged on several files"
        raise InvalidInput(message, field=field, remedy=_ONE_FILE)
    for spec in resolved.candidates or ():
        if spec.needs_rows:
            reason = f"{spec.name} reads questions, and cannot be judged on several files"
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
    since: time before which decisions were not read, seconds since the epoch; None if all were read.
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
    middles = [sum(summary.bounds(target)) / 2.0 for target in range(3)]
    columns = Scores(candidates=len(candidates), middles=middles)
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
        notes=(*notes, *notes_on(summary)),
        skipped=skipped,
        sampled_from=sampled_from,
    )


def check_ids(summary: LogSummary, *, parts: Sequence[LogPart]) -> None:
    keys = np.sort(np.concatenate(summary.keys))
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        names = [name for part in parts for name in part.names_of(repeated[0])]
        message = f"has the id of {names[0]}; {len(repeated)} rows repeat an id"
        remedy = "log every decision once; a row that is in two files would count twice"
        raise InvalidInput(message, field=f"{names[-1]} id", remedy=remedy)


def check_summary(summary: LogSummary, *, since: float | None, log: str) -> None:
    left_out = summary.left_out
    check_times(kept=summary.rows, older=left_out.older, timeless=left_out.timeless, since=since, log=log)
    if not summary.rows:
        remedy = "feedback must have been learned before it can be replayed"
        raise InvalidInput("the log has no rows", field="log", remedy=remedy)
    for name in summary.model.plan.segments:
        if not any(summary.fields[name]):
            remedy = "use tenant, version, policy or a key of the context"
            raise InvalidInput(f"no row has the field {name!r}", field=f"segment {name}", remedy=remedy)


def notes_on(summary: LogSummary) -> list[str]:
    plan, rows, marked = summary.model.plan, summary.rows, summary.marked
    reason = "the draws are not checked, and an arm counts as possible in every row that offers it"
    partial = f"{marked['partial']:,} rows have the probability of the drawn arm only: {reason}"
    notes = [partial] * (marked["partial"] > 0)
    if summary.left_out.undrawn:
        reason = "their arm was not drawn (an earlier turn's, or pinned), or their label was chosen by the label queue"
        notes.append(f"{summary.left_out.undrawn:,} decisions are left out: {reason}")
    if summary.left_out.early:
        notes.append(f"{summary.left_out.early:,} rows before the first exploration are left out: one arm was certain")
    texts, different = int(summary.known_by[BY_TEXT]), len(np.unique(np.concatenate(summary.texts)))
    if texts and different <= FRESH * texts:
        reason = "the intervals hold for more traffic with these questions, not with new ones"
        notes.append(f"{different} different questions in {texts} rows: {reason}")
    if marked["judged"]:
        notes.append(
            f"{marked['judged']:,} of {rows:,} rewards are a judge's, taken as they were learned: the intervals "
            "do not count what the judge gets wrong"
        )
    if summary.known_by[BY_FEATURES]:
        reason = "those with the same features count as the same question in the folds"
        notes.append(f"{summary.known_by[BY_FEATURES]:,} rows have no text: {reason}")
    if summary.known_by[BY_ID]:
        reason = "a question that occurs several times is not recognised, and may lie in several folds"
        notes.append(f"{summary.known_by[BY_ID]:,} rows have neither text nor features: {reason}")
    if not summary.model.has_features:
        notes.append("the rows have no features: the reward model knows the arms' means only")
    if plan.weight is not None and marked["raw"]:
        notes.append(
            f"{marked['raw']} rewards have no quality and cost: they keep their value whatever the weight of cost"
        )
    if marked["defaulted"]:
        notes.append(f"{marked['defaulted']} of {rows} rewards are the default: nobody judged those answers")
    return notes


def replay_pmfs(log: MemoryLog, pmfs: Mapping[str, Matrix], *, folds: int, progress: Progress) -> ReplayResult:
    """Judge policies, given by their probabilities, and each fixed arm. pmfs: name -> probabilities, (n, K)."""
    fixed = [spec for spec in baselines(log.log.arms) if spec.kind == "fixed"]
    specs = [CandidateSpec(name=label, kind="column", what=label) for label in pmfs]
    candidates = [
        *(CandidatePmf(described=label, pmf=pmf) for label, pmf in pmfs.items()),
        *(CandidatePmf(described=spec.name, pmf=array_pmf(spec, log=log.log, named=str)) for spec in fixed),
    ]
    return estimate_candidates(
        [memory_part(replace(log.log, candidates=tuple(candidate.pmf for candidate in candidates)))],
        candidates=[*specs, *fixed],
        candidate_pmfs=candidates,
        plan=Plan(folds=folds),
        log=log.described,
        progress=progress,
    )


def _merged(
    name: str, work: Callable[..., Sums], parts: Sequence[LogPart], *, executor: Executor | None, progress: Progress
) -> Sums:
    """The sums of one pass over all parts, in their order. name: "summarized" or "judged", for progress."""
    if executor is None and len(parts) == 1:
        return work(parts[0], progress=progress)
    merged: Sums | None = None
    threads = ThreadPoolExecutor(min(cores(), len(parts)), thread_name_prefix="replay")
    with threads if executor is None else nullcontext(executor) as pool:
        try:
            for done, sums in enumerate(pool.map(work, parts), start=1):
                merged = sums if merged is None else merged.merged(sums)
                progress(f"parts {name}", done, len(parts))
        except BaseException:  # after Ctrl-C, a thread finishes only its current batch, not the whole file
            for part in parts:
                part.stopped = True
            raise
    assert merged is not None, "a log has at least one part"
    return merged


def baseline_of(plan: Plan, candidates: Sequence[CandidateSpec]) -> int | None:
    """The index of the baseline among the candidates; None for the logged policy. Raises InvalidInput."""
    names = [spec.name for spec in candidates]
    if plan.baseline in (None, LOGGED):
        return None
    if plan.baseline not in names:
        remedy = f"use {CURRENT}, {LOGGED}, or one of {', '.join(names)}"
        raise InvalidInput(f"the baseline {plan.baseline!r} is not a candidate", field="baseline", remedy=remedy)
    return names.index(plan.baseline)
