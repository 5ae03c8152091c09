"""The engine: opens a log, folds its batches into sums, in two passes, and the sums into results.

    pass 1   counts, weights, draws, keys of the ids; sums of the reward model     -> checked, the model solved
    pass 2   sums of the estimates, by segment                                     -> the result

A log has one part, or one for each of its files. Parts are read one after the other, or by the workers of an executor;
what they give is merged in the order of the files.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Final, TypeVar

from ragbandit.router.config.loading import load as load_settings
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import Estimator, Progress, Tally, no_progress
from ragbandit.router.offline.logs import (
    BadRow,
    Defaults,
    Logged,
    Place,
    check_shared,
    files_of,
    is_several,
    log_format,
    place_of,
    read_rows,
    reward_defaults,
    shown,
    told_rows,
    usable_rows,
)
from ragbandit.router.offline.logs.batches import LogSource, arms_of, check_choice
from ragbandit.router.offline.logs.ledger_source import LedgerSource
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.logs.parquet import ParquetSource, RowsSource
from ragbandit.router.offline.processes import each_part
from ragbandit.router.offline.replay.assemble import ResultAssembler
from ragbandit.router.offline.replay.candidates import MemoryLog, current_candidate, is_current, memory_log
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    LOGGED,
    CandidatePmf,
    CandidateSpec,
    LoggedPolicies,
    Plan,
    ReplayResult,
    baselines,
    described,
    instant,
    parse_candidates,
)
from ragbandit.router.offline.replay.prepare import MakeEncoder, logged_policies, prepare, serving_settings
from ragbandit.router.offline.replay.sums import (
    LogPart,
    LogSummary,
    Scores,
    ScoreSums,
    SourcePart,
    check_ids,
    check_summary,
    check_times,
    learn_part,
    measure_part,
    shown_segments,
)
from ragbandit.router.serving.setup.bootstrap import encoder_of, ledger_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName

Sums = TypeVar("Sums", bound=Tally)
Answer = TypeVar("Answer")

#: rows per fold from which on estimators with a model are shown unasked
FEWEST_ROWS = 2
#: bytes of arrays that are kept from one pass to the next, of all parts
KEPT_BYTES: Final = 1 << 28
_ONE_FILE: Final = "give it one file"


def open_log(
    path: str | Path | None = None,
    *,
    format: str | None = None,  # noqa: A002 - as in read_rows
    config: str | Path | Settings | None = None,
    label: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    since: float | None = None,
    mixed_arms: bool = False,
    skip_bad: bool = False,
) -> "OpenLog":
    """A log for `replay`. Nothing but the configuration is read here.

    path: a file (JSONL, Parquet); a folder of Parquet files, or a pattern with * for several; for Parquet
    also a URL of fsspec; None: the ledger `label` of the configured store.
    format: of a file whose name does not tell it.
    config: a file, ready Settings, or None for ./config.yaml and the environment.
    label: default policy.label.
    minimum, maximum: bounds of rewards that name none; default reward.minimum and reward.maximum.
    since: rows decided before are left out, seconds since the epoch.
    mixed_arms: rows may offer different arms.
    skip_bad: rows that cannot be used are left out and counted, instead of refused.
    Raises InvalidInput for an unknown format, and for bounds that are not finite or not in order; ConfigError for a
    wrong setting.
    """
    settings = config if isinstance(config, Settings) else load_settings(config).settings
    return OpenLog(
        path=None if path is None else place_of(path),
        format=None if path is None else log_format(place_of(path), format=format),
        settings=settings,
        label=label or settings.policy.label,
        defaults=reward_defaults(settings.reward, minimum=minimum, maximum=maximum),
        since=since,
        mixed_arms=mixed_arms,
        skip_bad=skip_bad,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLog:
    """A log that `replay` reads: in pieces where it can, otherwise into memory."""

    #: None: the ledger of the store
    path: Place | None
    format: str | None
    settings: Settings
    label: str
    defaults: Defaults
    since: float | None = None
    mixed_arms: bool = False
    skip_bad: bool = False

    @property
    def several(self) -> bool:
        """Whether it is a folder of files, or a pattern. Lists nothing."""
        return self.path is not None and is_several(self.path)

    def files(self) -> Sequence[Place]:
        """The files of a folder or a pattern, by name, or the one file. Raises InvalidInput."""
        assert self.path is not None
        if not self.several:
            return [self.path]
        files = files_of(self.path)
        if not files:
            raise InvalidInput(
                "has no Parquet files", field=shown(self.path), remedy="name a folder with *.parquet in it"
            )
        if self.skip_bad:
            raise InvalidInput(
                "a log of several files is judged whole", field="skip_bad", remedy="remove the rows, or name one file"
            )
        return files

    @contextmanager
    def sources(
        self, candidates: Sequence[CandidateSpec], *, skipped: list[BadRow], whole: bool = False
    ) -> Iterator[Sequence[LogSource] | None]:
        """What can be judged in batches; None where all rows are needed in memory: where a candidate reads questions.

        skipped: takes the rows that are left out because they cannot be used. whole: the baseline reads questions.
        Raises InvalidInput for a ledger without rows, StoreError where it cannot be read.
        """
        own = {spec.what for spec in candidates if spec.kind == "column"}
        if whole or any(spec.needs_rows for spec in candidates):
            yield None
        elif self.path is None:
            with ledger_of(self.settings, label=self.label) as ledger:
                yield [LedgerSource.of(ledger, since=self.since)]
        else:
            # Rows that cannot be used are left out one by one: then a file is not read as columns.
            in_columns = self.several or (self.format == "parquet" and not self.skip_bad)
            files = [ParquetSource(path=one, defaults=self.defaults) for one in self.files() if in_columns]
            in_columns = self.several or (in_columns and own <= set(files[0].columns()))
            rows = partial(self._usable, self.path, skipped=skipped)
            yield files if in_columns else [RowsSource(rows=rows)]

    def _usable(self, path: Place, *, skipped: list[BadRow], progress: Progress = no_progress) -> Iterator[Logged]:
        """The rows of a file; those that cannot be used are put into `skipped`, or refused at the end."""
        rows = read_rows(path, format=self.format, defaults=self.defaults)
        return usable_rows(told_rows(rows, progress), path=path, skip=self.skip_bad, bad=skipped)

    def arms(self, sources: Sequence[LogSource]) -> tuple[ArmName, ...]:
        """The arms of the log: those of its first row, or all that any row offers where these may differ."""
        names: dict[ArmName, None] = {}
        for source in sources:
            names |= dict.fromkeys(arms_of(source, every=self.mixed_arms))
            if names and not self.mixed_arms:
                break
        if not names and self.path is None:
            raise self._no_rows()
        if not names:
            what = f"none of {len(sources)} files has rows" if self.several else "has no rows that were drawn"
            raise InvalidInput(what, field="log", remedy="give a log with at least one decision")
        check_choice(tuple(names))
        return tuple(names)

    def _no_rows(self) -> InvalidInput:
        later = "" if self.since is None else f" decided since {instant(self.since)}"
        return InvalidInput(
            f"the ledger {self.label!r} has no rows{later}",
            field="log",
            remedy="decisions count once their feedback is learned; `ragbandit status` says where they are",
        )

    @property
    def described(self) -> str:
        """Where the rows come from, for the report."""
        return f"the ledger {self.label}" if self.path is None else shown(self.path)

    def of_store(self, asked: Callable[[Ledger], Answer]) -> Answer | None:
        """What is asked of the ledger; None of a file."""
        if self.path is not None:
            return None
        with ledger_of(self.settings, label=self.label) as ledger:
            return asked(ledger)

    def read(self, progress: Progress = no_progress, *, older: bool = False) -> MemoryLog:
        """All rows in memory; older: of the store also those before `since`, to learn from.

        Raises InvalidInput, and StoreError for a store that cannot be read.
        """
        skipped: list[BadRow] = []
        logged: LoggedPolicies = {}
        if self.path is not None:
            rows = self._later(self.path, list(self._usable(self.path, skipped=skipped, progress=progress)))
        else:
            with ledger_of(self.settings, label=self.label) as ledger:
                stored = ledger_rows(ledger, since=None if older else self.since)
                rows = list(told_rows(stored, progress, total=ledger.last_seq()))
                logged = logged_policies(ledger)
            if all(self.since is not None and row.decision.made_at < self.since for row in rows):
                raise self._no_rows()
        return memory_log(
            rows,
            mixed_arms=self.mixed_arms,
            ledger=self.label if self.path is None else None,
            described=self.described,
            since=self.since,
            skipped=skipped,
            logged=logged,
        )

    def _later(self, path: Place, rows: list[Logged]) -> list[Logged]:
        """The rows decided since `since`. Raises InvalidInput where rows have no time, and where none is left."""
        since = self.since
        if since is None:
            return rows
        timeless = sum(row.decision.made_at == 0.0 for row in rows)
        later = [row for row in rows if row.decision.made_at >= since]
        older = len(rows) - len(later)
        check_times(kept=len(later), older=older, timeless=timeless, since=since, log=shown(path))
        return later


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

    log: of `open_log`, or rows in memory (`memory_log`). Parquet files and the ledger of the store are read in batches
    where no candidate reads questions, so that they need not fit in memory. candidates: names as of `ragbandit replay
    --policy`, or specs; None: each arm of the log, and uniform. settings: the service's, by which policies and
    snapshots are served (floors, cold start, incumbent, fallback), and folders of snapshots and of cached features;
    default those of the opened log. encoder: makes the encoder, for rows without features or with another encoder's;
    default the configured one for an opened log. executor: judges the files of a folder or a pattern, for example a
    `concurrent.futures.ProcessPoolExecutor`, or Dask's `Client.get_executor()`; default one after the other, in this
    process.
    Raises InvalidInput, ConfigError, StoreError or SnapshotError for what cannot be judged.
    """
    if isinstance(log, OpenLog):
        settings = settings or log.settings
        encoder = encoder or partial(encoder_of, settings)
    plan, settings = plan or Plan(), settings or Settings()
    plan = replace(plan, usual_weight=settings.reward.weight)
    specs = None if candidates is None else _specs(candidates)
    judging = partial(estimate_candidates, executor=executor, progress=progress)
    current = None
    if isinstance(log, MemoryLog):
        rows = log
    else:
        check_spread(log, plan=plan, candidates=specs or (), executor=executor)
        if plan.baseline in (CURRENT, None):
            current = log.of_store(partial(serving_settings, settings=log.settings))
        skipped: list[BadRow] = []
        whole = current is not None or plan.baseline == CURRENT
        with log.sources(specs or (), skipped=skipped, whole=whole) as sources:
            if sources is not None:
                judging = partial(judging, skipped=skipped)
                return _replay_sources(sources, log=log, specs=specs, plan=plan, judging=judging)
        # What a snapshot learned before `since`, the others learn too.
        rows = log.read(progress, older=any(spec.kind == "snapshot" for spec in specs or ()))
    specs = baselines(rows.log.arms) if specs is None else specs
    if current is None and is_current(rows, candidates=specs, plan=plan, settings=settings):
        current = settings
    if current is not None:
        specs = [*specs, current_candidate(current, plan=plan)]
        plan = replace(plan, baseline=specs[-1].name)
    plan = replace(plan, baseline=plan.baseline or LOGGED)
    ready = prepare(rows, candidates=specs, plan=plan, settings=settings, encoder=encoder, progress=progress)
    return judging(
        [ready.part()],
        plan=plan,
        candidates=specs,
        candidate_pmfs=ready.candidate_pmfs,
        log=rows.described,
        logged=rows.logged,
        since=rows.since,
        notes=ready.notes,
        skipped=rows.skipped,
    )


def _replay_sources(
    sources: Sequence[LogSource],
    *,
    log: OpenLog,
    specs: list[CandidateSpec] | None,
    plan: Plan,
    judging: Callable[..., ReplayResult],
) -> ReplayResult:
    """Judge candidates on a log that need not fit in memory."""
    arms, plan = log.arms(sources), replace(plan, baseline=plan.baseline or LOGGED)
    specs = baselines(arms) if specs is None else specs
    part = partial(SourcePart, candidates=specs, plan=plan, arms=arms, mixed_arms=log.mixed_arms, since=log.since)
    return judging(
        [part(source=source) for source in sources],
        plan=plan,
        candidates=specs,
        candidate_pmfs=[CandidatePmf(described=described(spec)) for spec in specs],
        log=log.described,
        logged=log.of_store(logged_policies),
        since=log.since,
    )


def check_spread(log: OpenLog, *, plan: Plan, candidates: Sequence[CandidateSpec], executor: Executor | None) -> None:
    """Raises InvalidInput, with the reason, for what several files do not allow, and for files no worker can read."""
    if not log.several:
        return
    if plan.learn or plan.baseline == CURRENT:
        field = "learn" if plan.learn else "baseline"
        raise InvalidInput("what learns from all rows in order is judged on one file", field=field, remedy=_ONE_FILE)
    for spec in candidates:
        if spec.needs_rows:
            reason = f"{spec.name} reads questions, which are not read of several files"
            raise InvalidInput(reason, field="policy", remedy=f"{_ONE_FILE}, or log its pmf as a column")
    if executor is not None:
        check_shared(log.files())


def _specs(candidates: Sequence[str | CandidateSpec]) -> list[CandidateSpec]:
    """Names parsed, specs as they are. Raises InvalidInput for a name that is given twice."""
    parsed = {spec.name: spec for spec in candidates if isinstance(spec, CandidateSpec)}
    names = [one if isinstance(one, str) else one.name for one in candidates]
    return [parsed.get(spec.name, spec) for spec in parse_candidates(names)]


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
    return assembler.result(candidate_pmfs, log=log, logged=logged or {}, since=since, notes=notes, skipped=skipped)


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
