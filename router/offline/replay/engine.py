"""Replays a log: candidates that learn write their column, then two passes over the columns give the estimates.

The first pass sums counts and weights, and learns the reward model; the second sums scores.

A log has one part per file. Threads or an executor read the parts; their sums are merged in the order of the files.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from ragbandit.router.comparison.words import assumption_words
from ragbandit.router.offline.estimation import Progress, Tally, no_progress
from ragbandit.router.offline.estimation.bandit_log import BY_FEATURES, BY_ID
from ragbandit.router.offline.logs import BadRow
from ragbandit.router.offline.logs.batches import BatchSpec
from ragbandit.router.offline.replay.assemble import ResultAssembler
from ragbandit.router.offline.replay.candidates import learn_columns, serving_definition
from ragbandit.router.offline.replay.opening import OpenLog
from ragbandit.router.offline.replay.parts import (
    CachedPart,
    MemoryPart,
    Part,
    SourcePart,
    check_times,
    names_of_rows,
    without_certain_start,
)
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    LOGGED,
    CandidateSpec,
    Description,
    Plan,
    ReplayResult,
    candidate_description,
    check_fixed_arms,
    current_candidate,
    default_candidates,
    parse_candidates,
)
from ragbandit.router.offline.replay.pmf_files import check_pmf_file, write_pmfs
from ragbandit.router.offline.replay.policy_pmfs import MakeEncoder
from ragbandit.router.offline.replay.sums import (
    CountedRows,
    LogMoments,
    LogSummary,
    Measure,
    ScoredRows,
    count_part,
    score_part,
)
from ragbandit.router.serving.setup.bootstrap import encoder_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.processes.this_process import cores
from ragbandit.shared.texts.formats import counted

Sums = TypeVar("Sums", bound=Tally)

#: maximum bytes of arrays that stay in memory between the passes, for all parts together
CACHE_BYTES: Final = 1 << 28
#: the result has a note if the number of different questions is at most this share of the rows
FRESH: Final = 0.8
_ONE_FILE: Final = "replay one file"


def replay(
    log: OpenLog,
    *,
    candidates: Sequence[str | CandidateSpec] | None = None,
    plan: Plan | None = None,
    encoder: MakeEncoder | None = None,
    executor: Executor | None = None,
    pmfs: str | Path | None = None,
    progress: Progress = no_progress,
) -> ReplayResult:
    """Judge candidates on a log.

    log: from `open_log`, or `memory_log`. It is read in batches, so it need not fit in memory, unless a candidate or
    the baseline reads questions. Its settings give floors, cold start, incumbent, fallback, and the folder of cached
    features.
    candidates: names as for `ragbandit replay --policy`, or specs; None for each arm of the log, and uniform.
    plan: default Plan().
    encoder: makes the encoder for rows without usable features; default: the configured encoder, but none for rows in
    memory.
    executor: judges the files of a folder or a pattern, such as Dask's `Client.get_executor()`; default threads.
    pmfs: file that gets the probabilities of each candidate that learns, see `write_pmfs`; None to write none.
    Raises InvalidInput, ConfigError or StoreError if the candidates cannot be judged.
    """
    settings = log.settings
    plan = replace(plan or Plan(), usual_weight=settings.reward.weight)
    specs = None if candidates is None else parse_candidates(candidates)
    learners = [spec for spec in specs or () if spec.learns]
    if log.has_several_files:
        check_several_files(learners, baseline=plan.baseline)
    judge = partial(
        estimate_candidates,
        log=log.described,
        since=log.since,
        executor=executor,
        progress=progress,
        more_notes=log.notes(),
        judged_share=log.judged_share(),
    )
    columns = {spec.name: spec.what for spec in specs or () if spec.kind == "column"}
    if pmfs is not None:
        check_pmf_file(pmfs, has_learners=bool(learners))
    if not learners and plan.baseline != CURRENT:
        return _replay_columns(log, specs=specs, columns=columns, plan=plan, judge=judge)
    encoder = encoder or (partial(encoder_of, settings) if log.rows is None else None)
    whole = log.read(fields=plan.segments, pmfs=columns, sample=plan.sample, progress=progress)
    configured, specs = settings.policy_definition, specs or default_candidates(whole.log.arms)
    serving = serving_definition(whole, configured=configured)
    if plan.baseline == LOGGED and serving is not None:
        message = "the policy was learning while it served, so every policy that has learned this log is ahead of it"
        raise InvalidInput(message, field="baseline", remedy=f"use {CURRENT}, or one of the candidates")
    baseline = plan.baseline or (LOGGED if serving is None else CURRENT)
    if baseline == CURRENT:
        specs = [*specs, current_candidate(serving or configured)]
        baseline = specs[-1].name
    plan = replace(plan, baseline=baseline)
    check_fixed_arms(specs, arms=whole.log.arms)
    whole, descriptions = learn_columns(
        whole, candidates=specs, plan=plan, definition=configured, encoder=encoder, progress=progress
    )
    if pmfs is not None:
        write_pmfs(pmfs, whole, names=[spec.name for spec in specs if spec.learns])
    return judge(
        without_certain_start([MemoryPart(log=whole.log, undrawn=whole.undrawn)]),
        plan=plan,
        candidates=specs,
        descriptions=descriptions,
        skipped=whole.skipped,
        sampled_from=whole.sampled_from,
    )


def _replay_columns(
    log: OpenLog,
    *,
    specs: Sequence[CandidateSpec] | None,
    columns: Mapping[str, str],
    plan: Plan,
    judge: Callable[..., ReplayResult],
) -> ReplayResult:
    skipped: list[BadRow] = []
    with log.sources(skipped=skipped) as sources:
        arms = log.arms(sources)
        specs, plan = specs or default_candidates(arms), replace(plan, baseline=plan.baseline or LOGGED)
        check_fixed_arms(specs, arms=arms)
        spec = BatchSpec(arms=arms, mixed_arms=log.mixed_arms, fields=plan.segments, pmfs=columns)
        parts = [SourcePart(source=source, spec=spec, plan=plan, since=log.since) for source in sources]
        return judge(
            without_certain_start(parts),
            plan=plan,
            candidates=specs,
            descriptions=[Description(described=candidate_description(spec)) for spec in specs],
            skipped=skipped,
        )


def check_several_files(learners: Sequence[CandidateSpec], *, baseline: str | None) -> None:
    """Raise InvalidInput for policies that learn, since the questions of several files are not merged."""
    if baseline == CURRENT:
        message = "a policy that learns the log cannot be judged on several files"
        raise InvalidInput(message, field="baseline", remedy=_ONE_FILE)
    if learners:
        reason = f"{learners[0].name} reads questions, and cannot be judged on several files"
        raise InvalidInput(reason, field="policy", remedy=f"{_ONE_FILE}, or log its pmf as a column")


def estimate_candidates(
    parts: Sequence[Part],
    *,
    candidates: Sequence[CandidateSpec],
    descriptions: Sequence[Description],
    plan: Plan,
    log: str,
    since: float | None = None,
    skipped: Sequence[BadRow] = (),
    sampled_from: int | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
    more_notes: Sequence[str] = (),
    judged_share: float = 1.0,
) -> ReplayResult:
    """Judge candidates from the columns of a log.

    descriptions: descriptions of the candidates, in the same order.
    since: time before which decisions were not read, seconds since the epoch; None if all were read.
    executor: reads the parts; default threads of this process.
    judged_share: share of the decisions that were judged, so that they are rows of the log.
    Raises InvalidInput for an impossible row, an empty log, or an unknown baseline.
    """
    baseline = baseline_of(plan, candidates)
    if executor is None:
        parts = [CachedPart(part=part, most_bytes=CACHE_BYTES // len(parts)) for part in parts]
    sum_parts = partial(_sum_parts, parts=parts, executor=executor, progress=progress)
    count = partial(count_part, plan=plan, candidates=candidates, baseline=baseline)
    first: CountedRows = sum_parts("summarized", count)
    summaries = first.by_origin
    # The decisions of the service are the log, if there are any. Imported rows are another population of questions.
    main = False not in summaries
    check_log(first, main=main, plan=plan, since=since, log=log)
    check_ids(summaries.values(), parts=parts)
    measure = Measure.of(summaries[main], candidates=candidates, segments=plan.segments)
    rows = sum(summary.rows for summary in summaries.values())
    second: ScoredRows = sum_parts("judged", partial(score_part, origin=main, measure=measure, rows=rows))
    evidence = LogMoments.of(summaries[main], measure=measure, sums=second.segments)
    about: dict[str, Any] = {"plan": plan, "candidates": candidates, "baseline": baseline}
    assembler = ResultAssembler(evidence=evidence, assumption=assumption_words(judged_share), **about)
    return assembler.result(
        descriptions,
        log=log,
        since=since,
        notes=(*notes_on(first, evidence=evidence, plan=plan), *more_notes),
        skipped=skipped,
        sampled_from=sampled_from,
    )


def check_ids(summaries: Iterable[LogSummary], *, parts: Sequence[Part]) -> None:
    keys = np.sort(np.concatenate([keys for summary in summaries for keys in summary.keys]))
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        names = [name for part in parts for name in names_of_rows(part, key=repeated[0])]
        message = f"has the id of {names[0]}; {len(repeated)} rows repeat an id"
        remedy = "log every decision once; a row that is in two files would count twice"
        raise InvalidInput(message, field=f"{names[-1]} id", remedy=remedy)


def check_log(first: CountedRows, *, main: bool, plan: Plan, since: float | None, log: str) -> None:
    left_out, rows = first.left_out, sum(summary.rows for summary in first.by_origin.values())
    check_times(kept=rows, older=left_out.older, timeless=left_out.timeless, since=since, log=log)
    if not rows:
        remedy = "feedback must have been learned before it can be replayed"
        raise InvalidInput("the log has no rows", field="log", remedy=remedy)
    for name in plan.segments:
        if not any(first.by_origin[main].fields[name]):
            remedy = "use tenant, version, policy or a key of the context"
            raise InvalidInput(f"no row has the field {name!r}", field=f"segment {name}", remedy=remedy)


def notes_on(first: CountedRows, *, evidence: LogMoments, plan: Plan) -> list[str]:
    """Notes on rows that are not judged, then notes on the rows of the log."""
    summary, left_out, notes = evidence.summary, first.left_out, list[str]()
    if len(first.by_origin) > 1:
        count = first.by_origin[True].rows
        were, them = ("was", "it") if count == 1 else ("were", "them")
        notes.append(f"{counted(count, 'row')} {were} imported: policies learn {them}, none is judged on {them}")
    if left_out.undrawn:
        reason = "their arm was not drawn (an earlier turn's, or pinned), or their label was chosen by the label queue"
        notes.append(f"{counted(left_out.undrawn, 'decision')} {_are(left_out.undrawn)} left out: {reason}")
    if left_out.early:
        rows = f"{counted(left_out.early, 'row')} before the first exploration"
        notes.append(f"{rows} {_are(left_out.early)} left out: one arm was certain")
    if evidence.design == "logged draws" and summary.different <= FRESH * summary.rows:
        reason = "the rows of a question count together, so that the intervals hold for new questions"
        questions, rows = counted(summary.different, "different question"), counted(summary.rows, "row")
        notes.append(f"{questions} in {rows}: {reason}")
    return [*notes, *notes_on_rows(summary, plan=plan)]


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _rows_have(count: int) -> str:
    return f"{counted(count, 'row')} {'has' if count == 1 else 'have'}"


def notes_on_rows(summary: LogSummary, *, plan: Plan) -> list[str]:
    of_rewards, marked, recognised_by = f"of {counted(summary.rows, 'reward')}", summary.marked, summary.recognised_by
    unjudged = "the draws are not checked, and an arm counts as possible in every row that offers it"
    by_judge = "taken as they were learned: the intervals do not count what the judge gets wrong"
    featured = "those with the same features count as the same question"
    unknown = "a question that occurs several times is not recognised, and counts as several"
    judged, defaulted = (f"{marked[kind]:,} {of_rewards} {_are(marked[kind])}" for kind in ("judged", "defaulted"))
    raw = f"{counted(marked['raw'], 'reward')} without quality and cost"
    notes = {
        f"{_rows_have(marked['partial'])} the probability of the drawn arm only: {unjudged}": marked["partial"],
        f"{judged} a judge's, {by_judge}": marked["judged"],
        f"{_rows_have(recognised_by[BY_FEATURES])} no text: {featured}": recognised_by[BY_FEATURES],
        f"{_rows_have(recognised_by[BY_ID])} neither text nor features: {unknown}": recognised_by[BY_ID],
        "the rows have no features: the reward model knows the arms' means only": not summary.model.has_features,
        f"{raw}: such a value stays, whatever the weight of cost": (plan.weight is not None and marked["raw"]),
        f"{defaulted} the default: nobody rated such an answer": marked["defaulted"],
    }
    return [note for note, applies in notes.items() if applies]


class _StoppedError(Exception):
    """Ends a pass in a thread after its current batch."""


def _sum_parts(
    name: str, work: Callable[..., Sums], parts: Sequence[Part], *, executor: Executor | None, progress: Progress
) -> Sums:
    """The sums of one pass over all parts, in their order. name: "summarized" or "judged", for progress."""
    if executor is None and len(parts) == 1:
        return work(parts[0], progress=progress)
    merged: Sums | None = None
    stopped = threading.Event()

    def until_stopped(_work: str, _done: int, _total: int) -> None:
        if stopped.is_set():
            raise _StoppedError

    work = partial(work, progress=until_stopped) if executor is None else work
    threads = ThreadPoolExecutor(min(cores(), len(parts)), thread_name_prefix="replay")
    with threads if executor is None else nullcontext(executor) as pool:
        try:
            for done, sums in enumerate(pool.map(work, parts), start=1):
                merged = sums if merged is None else merged.merged(sums)
                progress(f"parts {name}", done, len(parts))
        except BaseException:  # after Ctrl-C, a thread finishes only its current batch, not the whole file
            stopped.set()
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
