"""Replay: candidates and a log to results. A log in memory is prepared first: probabilities of every candidate."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder, embedded
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Flags, Progress, no_progress
from ragbandit.router.offline.logs import check_shared
from ragbandit.router.offline.logs.batches import LogSource
from ragbandit.router.offline.logs.parquet import row_name
from ragbandit.router.offline.replay.candidates import (
    CandidatePolicy,
    check_candidate,
    crossfitted,
    current_candidate,
    is_current,
    judged_rows,
    load,
    notes_of,
    progressive_validation,
    served_policy,
    service_note,
    settings_in_force,
    with_policies,
)
from ragbandit.router.offline.replay.engine import LogPart, SourcePart, estimate_candidates, memory_part
from ragbandit.router.offline.replay.opening import MemoryLog, OpenLog
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    LOGGED,
    CandidatePmf,
    CandidateSpec,
    Plan,
    ReplayResult,
    Skipped,
    array_pmf,
    baselines,
    described,
    parse_candidates,
)
from ragbandit.router.policies.base import Policy, serves_prices
from ragbandit.router.serving.setup.bootstrap import encoder_of
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import FeatureRows, SnapshotInfo

MakeEncoder = Callable[[], Encoder]
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
        current = log.current() if plan.baseline in (CURRENT, None) else None
        skipped: list[Skipped] = []
        whole = current is not None or plan.baseline == CURRENT
        with log.sources(specs or (), skipped=skipped, whole=whole) as sources:
            if sources is not None:
                plan = replace(plan, baseline=plan.baseline or LOGGED)
                judging = partial(judging, plan=plan, skipped=skipped)
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
    arms, mixed, since = log.arms(sources), log.mixed_arms, log.since
    specs = baselines(arms) if specs is None else specs
    return judging(
        [
            SourcePart(source=source, candidates=specs, plan=plan, arms=arms, mixed_arms=mixed, since=since)
            for source in sources
        ],
        candidates=specs,
        candidate_pmfs=[CandidatePmf(described=described(spec)) for spec in specs],
        log=log.described,
        logged=log.logged(),
        since=since,
        empty=log.empty(sources),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedLog:
    """The rows that can be judged, and what each candidate would do on them."""

    log: MemoryLog
    candidate_pmfs: Sequence[CandidatePmf]
    notes: Sequence[str]

    def part(self) -> LogPart:
        """The rows with what each candidate does on them, for `estimate_candidates`."""
        log = replace(self.log.log, candidates=tuple(one.pmf for one in self.candidate_pmfs))
        return memory_part(log, undrawn=self.log.undrawn)


def prepare(
    log: MemoryLog,
    *,
    candidates: Sequence[CandidateSpec],
    plan: Plan,
    settings: Settings,
    encoder: MakeEncoder | None = None,
    progress: Progress = no_progress,
) -> PreparedLog:
    """All of `replay` but the judging: probabilities of every candidate on every row that is judged.

    Raises as `replay` does.
    """
    settings = settings_in_force(settings, arms=log.log.arms, floor=plan.floor)
    by, served = dict[str, Settings](), dict[str, Policy]()
    for spec in candidates:
        if spec.learns:
            check_candidate(spec, arms=log.log.arms)
            by[spec.name] = settings_in_force(spec.current or settings, arms=log.log.arms, floor=plan.floor)
            served[spec.name] = served_policy(spec, settings=by[spec.name])
    files = SnapshotFiles(settings.snapshot_root)
    snapshots = {spec.name: load(spec, files=files) for spec in candidates if spec.kind == "snapshot"}
    judged, notes = judged_rows(log, snapshots=[info for _, info in snapshots.values()])
    own = [spec.what for spec in candidates if spec.kind == "column"]
    log = log.with_columns(fields=plan.segments, own=own)
    log = replace(log, log=plan.read_at_weight(log.log))
    preparation = Preparation(plan=plan, settings=settings, encoder=encoder, progress=progress)
    log = preparation.with_features(log, needed=any("features" in policy.needs for policy in served.values()))
    pmfs = [
        replace(preparation, settings=by.get(spec.name, settings))
        .candidate_pmf(spec, log=log, judged=judged, snapshot=snapshots.get(spec.name))
        .part(judged)
        for spec in candidates
    ]
    if served or snapshots:
        notes.append(service_note(settings))
    rows = [log.rows[int(index)] for index in np.flatnonzero(judged)]
    arrays = log.log.part(judged)
    return PreparedLog(
        log=replace(log, rows=rows, log=arrays),
        candidate_pmfs=with_policies(pmfs, candidates=candidates, plan=plan, served=served, logged=arrays.pmf),
        notes=notes,
    )


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What candidates need of a log before they can be judged."""

    plan: Plan
    #: with the floors in force
    settings: Settings
    encoder: MakeEncoder | None
    progress: Progress

    def with_features(self, log: MemoryLog, *, needed: bool) -> MemoryLog:
        """The rows' features; where they are missing or of several encoders and a policy needs them, encoded again."""
        hashes = {row.decision.encoder_hash for row in log.rows}
        if log.log.features is not None and len(hashes) == 1:
            return log
        if not needed:
            # Features of several encoders are not of one kind: a model of rewards must not mix them.
            return replace(log, log=replace(log.log, features=None))
        return replace(log, log=replace(log.log, features=self.encoded(log)[0]))

    def encoded(self, log: MemoryLog) -> tuple[FeatureRows, str]:
        """The questions by the configured encoder, and its hash."""
        for row in log.rows:
            if not row.decision.query.text.strip():
                raise InvalidInput(
                    f"{row.decision.id} has no question, and its features are missing or another encoder's",
                    field="text",
                    remedy="log the questions or the features, or judge what reads neither, with --baseline logged",
                )
        if self.encoder is None:
            raise ConfigError(
                "a policy needs features", field="encoder", remedy="pass encoder=, a function that makes one"
            )
        encoder = self.encoder()
        texts = [row.decision.query.text for row in log.rows]
        features = embedded(texts, encoder=encoder, data_dir=self.settings.data_dir, progress=self.progress)
        return features, encoder.hash

    def candidate_pmf(
        self, spec: CandidateSpec, *, log: MemoryLog, judged: Flags, snapshot: tuple[Policy, SnapshotInfo] | None
    ) -> CandidatePmf:
        """This candidate on the rows that are judged, shape (n,); a policy learns the others too."""
        if not spec.needs_rows:
            pmf = array_pmf(spec, log=log.log, named=lambda row: row_name(log.rows[row]))
            return CandidatePmf(described=described(spec), pmf=pmf)
        if snapshot is not None:
            policy, info = snapshot
            if self.plan.weight is not None and not serves_prices(policy):
                raise InvalidInput(
                    f"{info.version} has one weight of cost for all questions ({info.algorithm})",
                    field="price",
                    remedy="leave --price out, or name the policy, which then learns this log at that price",
                )
            frozen = self._candidate_policy(policy, log=log, features=self._features_for(policy, info, log=log))
            pmf = np.zeros(log.log.pmf.shape)
            pmf[judged] = frozen.ask(np.flatnonzero(judged))
            words = f"{info.algorithm} after {info.last_seq} updates of {info.policy}"
            return CandidatePmf(described=words, pmf=pmf, notes=notes_of(frozen), learned="before")

        def make() -> CandidatePolicy:
            policy = served_policy(spec, settings=self.settings)
            return self._candidate_policy(policy, log=log, features=log.log.features)

        if self.plan.learn:
            return progressive_validation(spec, make=make, log=log, judged=judged, progress=self.progress)
        [pmf], notes = crossfitted(
            [None],
            name=spec.name,
            make=make,
            folds_of_rows=self.plan.folds_in(log.log),
            folds=self.plan.folds,
            progress=self.progress,
            judged=judged,
        )
        words = f"{spec.what}, each of {self.plan.folds} folds judged by what the others taught"
        return CandidatePmf(described=words, pmf=pmf, notes=notes)

    def _features_for(self, policy: Policy, info: SnapshotInfo, *, log: MemoryLog) -> FeatureRows | None:
        """As the snapshot's encoder makes them."""
        if "features" not in policy.needs:
            return None
        if log.log.features is not None and {row.decision.encoder_hash for row in log.rows} == {info.encoder_hash}:
            return log.log.features
        features, made_by = self.encoded(log)
        if made_by != info.encoder_hash:
            raise InvalidInput(
                f"{info.version} was made with encoder {info.encoder_hash[:12]}, not {made_by[:12]}",
                field="encoder",
                remedy="configure the encoder that the snapshot was made with",
            )
        return features

    def _candidate_policy(self, policy: Policy, *, log: MemoryLog, features: FeatureRows | None) -> CandidatePolicy:
        return CandidatePolicy(policy, log=log, features=features, settings=self.settings, weight=self.plan.weight)
