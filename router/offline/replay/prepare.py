"""Prepares a log in memory for a replay: computes the probabilities of every candidate on its rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder, embedded
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Flags, Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs.batches import row_named
from ragbandit.router.offline.replay.candidates import (
    CandidatePolicy,
    check_candidate,
    crossfitted,
    lessons,
    load,
    notes_of,
    progressive_validation,
    rows_to_judge,
    served_policy,
    service_note,
    settings_in_force,
)
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.parts import LogPart, certain_start, first_rows, memory_part
from ragbandit.router.offline.replay.plan import (
    CandidatePmf,
    CandidateSpec,
    LoggedPolicy,
    Plan,
    array_pmf,
    described,
)
from ragbandit.router.policies.base import Policy, serves_prices
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import FeatureRows, SnapshotInfo, Update

MakeEncoder = Callable[[], Encoder]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedLog:
    log: MemoryLog
    candidate_pmfs: Sequence[CandidatePmf]
    notes: Sequence[str]
    early: int = 0  #: rows before the first exploration, which are not judged

    def part(self) -> LogPart:
        log = replace(self.log.log, candidates=tuple(candidate.pmf for candidate in self.candidate_pmfs), batch=None)
        return memory_part(log, undrawn=self.log.undrawn, early=self.early)


def prepare(
    log: MemoryLog,
    *,
    candidates: Sequence[CandidateSpec],
    plan: Plan,
    settings: Settings,
    encoder: MakeEncoder | None = None,
    progress: Progress = no_progress,
) -> PreparedLog:
    """Compute each candidate's probabilities on every judged row. Parameters and errors are those of `replay`."""
    settings = settings_in_force(settings, arms=log.log.arms, floor=plan.floor)
    partial = np.count_nonzero(log.log.partial)  # type: ignore[arg-type] # None counts as 0
    if partial:
        message = f"{partial} rows have the probability of the drawn arm only, and a policy needs that of every arm"
        raise InvalidInput(message, field="pmf", remedy="log the whole pmf, or judge fixed:ARM with --baseline logged")
    settings_by_name, served = dict[str, Settings](), dict[str, Policy]()
    for spec in candidates:
        if spec.learns:
            check_candidate(spec, arms=log.log.arms)
            in_force = settings_in_force(spec.current or settings, arms=log.log.arms, floor=plan.floor)
            settings_by_name[spec.name] = in_force
            served[spec.name] = served_policy(spec, settings=in_force)
    files = SnapshotFiles(settings.snapshot_root)
    snapshots = {spec.name: load(spec, files=files) for spec in candidates if spec.kind == "snapshot"}
    judged, notes = rows_to_judge(log, snapshots=[info for _, info in snapshots.values()], learn=plan.learn)
    shown = np.flatnonzero(judged)
    early = first_rows(log.log.part(shown), counts=certain_start([[log.log.part(shown)]])[0])
    judged[shown[early]] = False
    log = replace(log, log=plan.read_at_weight(log.log))
    if log.log.features is None and any("features" in policy.needs for policy in served.values()):
        features, encoder_hash = encoded(log.log, encoder=encoder, settings=settings, progress=progress)
        log = replace(log, log=replace(log.log, features=features, encoder_hash=encoder_hash))
    updates = lessons(log.log, place=log.place) if served or snapshots else []
    preparation = _Preparation(plan=plan, settings=settings, encoder=encoder, updates=updates, progress=progress)
    pmfs = []
    for spec in candidates:
        with_settings = replace(preparation, settings=settings_by_name.get(spec.name, settings))
        pmf = with_settings.candidate_pmf(spec, log=log, judged=judged, snapshot=snapshots.get(spec.name))
        pmf = replace(pmf, pmf=pmf.pmf[judged])
        policy = served.get(spec.name)
        # The name of the current policy already describes what it has learned.
        if policy is not None and (plan.learn or not spec.current):
            served_as = LoggedPolicy.of(policy.algorithm, params=policy.params)
            pmf = replace(pmf, learned="along" if plan.learn else "folds", policy=served_as)
        pmfs.append(pmf)
    if served or snapshots:
        notes.append(service_note(settings))
    judged_log = replace(log, log=log.log.part(judged))
    return PreparedLog(log=judged_log, candidate_pmfs=pmfs, notes=notes, early=len(early))


def encoded(
    log: Log, *, encoder: MakeEncoder | None, settings: Settings, progress: Progress
) -> tuple[FeatureRows, str]:
    """Encode the questions. Returns (features, hash of the configured encoder)."""
    texts = log.batch.column("text").fill_null("").to_pylist() if "text" in log.batch.schema.names else [""] * len(log)
    for index, text in enumerate(texts):
        if not text.strip():
            key = log.batch.column("id")[index]
            message = f"{key} has no question, and its features are missing or another encoder's"
            remedy = "log questions or features, or judge candidates that read neither, with --baseline logged"
            raise InvalidInput(message, field="text", remedy=remedy)
    if encoder is None:
        remedy = "pass encoder=, a function that makes an encoder"
        raise ConfigError("a policy needs features", field="encoder", remedy=remedy)
    made = encoder()
    return embedded(texts, encoder=made, data_dir=settings.data_dir, progress=progress), made.hash


@dataclass(frozen=True, kw_only=True)
class _Preparation:
    plan: Plan
    settings: Settings
    encoder: MakeEncoder | None
    updates: Sequence[Update]
    progress: Progress

    def candidate_pmf(
        self, spec: CandidateSpec, *, log: MemoryLog, judged: Flags, snapshot: tuple[Policy, SnapshotInfo] | None
    ) -> CandidatePmf:
        """Probabilities of a candidate, 0 outside of the judged rows. A policy learns the other rows too."""
        if not spec.needs_rows:
            pmf = array_pmf(spec, log=log.log, named=lambda row: row_named(log.log.batch, row, place=log.place))
            return CandidatePmf(described=described(spec), pmf=pmf)
        if snapshot is not None:
            policy, info = snapshot
            if self.plan.weight is not None and not serves_prices(policy):
                message = f"{info.version} has one weight of cost for all questions ({info.algorithm})"
                remedy = "leave --price out, or name the policy, which then learns this log at that price"
                raise InvalidInput(message, field="price", remedy=remedy)
            frozen = self._candidate_policy(policy, log=log, features=self._features_for(policy, info, log=log))
            pmf = np.zeros(log.log.pmf.shape)
            pmf[judged] = frozen.ask(np.flatnonzero(judged))
            description = f"{info.algorithm} after {info.last_seq} updates of {info.policy}"
            return CandidatePmf(described=description, pmf=pmf, notes=notes_of(frozen), learned="before")

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
        description = f"{spec.what}, each of {self.plan.folds} folds judged by what the others taught"
        return CandidatePmf(described=description, pmf=pmf, notes=notes)

    def _features_for(self, policy: Policy, info: SnapshotInfo, *, log: MemoryLog) -> FeatureRows | None:
        if "features" not in policy.needs:
            return None
        if log.log.features is not None and log.log.encoder_hash == info.encoder_hash:
            return log.log.features
        features, encoder_hash = encoded(log.log, encoder=self.encoder, settings=self.settings, progress=self.progress)
        if encoder_hash != info.encoder_hash:
            message = f"{info.version} was made with encoder {info.encoder_hash[:12]}, not {encoder_hash[:12]}"
            raise InvalidInput(message, field="encoder", remedy="configure the encoder that the snapshot was made with")
        return features

    def _candidate_policy(self, policy: Policy, *, log: MemoryLog, features: FeatureRows | None) -> CandidatePolicy:
        return CandidatePolicy(
            policy,
            log=log.log,
            updates=self.updates,
            features=features,
            settings=self.settings,
            weight=self.plan.weight,
            share=log.share,
        )
