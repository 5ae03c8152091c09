"""Candidates of a replay that learn or read questions: their settings, and the rows on which they are judged."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Choices, Flags, Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs.batches import row_named
from ragbandit.router.offline.logs.columns import LINE
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.router.offline.replay.parts import LogPart, imported
from ragbandit.router.offline.replay.plan import CURRENT, CandidatePmf, CandidateSpec, Plan, array_pmf, described
from ragbandit.router.offline.replay.policy_pmfs import MakeEncoder, PolicyPmfs, encoded, lessons, served_policy
from ragbandit.router.policies import known_policies, make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.settings_check import check_arms
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import ArmName, SnapshotInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedLog:
    log: MemoryLog  #: the rows to judge
    candidate_pmfs: Sequence[CandidatePmf]
    notes: Sequence[str]

    def part(self) -> LogPart:
        log = replace(self.log.log, candidates=tuple(candidate.pmf for candidate in self.candidate_pmfs), batch=None)
        return LogPart(rows=log, undrawn=self.log.undrawn)


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
    partial = np.count_nonzero(log.log.partial)  # type: ignore[arg-type] # None counts as 0
    if partial:
        message = f"{partial} rows have the probability of the drawn arm only, and a policy needs that of every arm"
        raise InvalidInput(message, field="pmf", remedy="log the whole pmf, or judge fixed:ARM with --baseline logged")
    settings = settings_in_force(settings, arms=log.log.arms, floor=plan.floor)
    in_force = {
        spec.name: settings_in_force(spec.current, arms=log.log.arms, floor=plan.floor) if spec.current else settings
        for spec in candidates
    }
    learners = [spec for spec in candidates if spec.learns]
    for spec in learners:
        check_candidate(spec, arms=log.log.arms)
    served = {spec.name: served_policy(spec, settings=in_force[spec.name]) for spec in learners}
    files = SnapshotFiles(settings.snapshot_root)
    snapshots = {spec.name: load(spec, files=files) for spec in candidates if spec.kind == "snapshot"}
    judged, notes = rows_to_judge(log, snapshots=[info for _, info in snapshots.values()])
    rows = plan.read_at_weight(log.log)
    if rows.features is None and any("features" in policy.needs for policy in served.values()):
        features, encoder_hash = encoded(rows, encoder=encoder, settings=settings, progress=progress)
        rows = replace(rows, features=features, encoder_hash=encoder_hash)
    log = replace(log, log=rows)
    updates = lessons(rows, place=log.place, plan=plan) if served or snapshots else []
    common: dict[str, Any] = {"log": log, "updates": updates, "judged": judged, "plan": plan, "progress": progress}
    pmfs = []
    for spec in candidates:
        ready = PolicyPmfs(settings=in_force[spec.name], encoder=encoder, **common)
        if spec.name in snapshots:
            candidate = ready.frozen(*snapshots[spec.name])
        elif spec.name in served:
            candidate = ready.learned(spec, policy=served[spec.name])
        else:
            pmf = array_pmf(spec, log=rows, named=lambda row: row_named(rows.batch, row, place=log.place))
            candidate = CandidatePmf(described=described(spec), pmf=pmf)
        pmfs.append(replace(candidate, pmf=candidate.pmf[judged]))
    return PreparedLog(log=replace(log, log=rows.part(judged)), candidate_pmfs=pmfs, notes=notes)


def load(spec: CandidateSpec, *, files: SnapshotFiles) -> tuple[Policy, SnapshotInfo]:
    """Load the snapshot of a version. Raises InvalidInput if it does not exist, SnapshotError if it is broken."""
    if not files.exists(spec.what):
        remedy = f"use fixed:ARM, column:KEY, a version, or one of {', '.join(known_policies())}"
        raise InvalidInput(f"{spec.what!r} is no policy and no snapshot in {files.root}", field="policy", remedy=remedy)
    return files.load(spec.what)


def seqs_of(log: Log) -> Choices:
    """The position of each row in its ledger; the line number if the file has no seqs, shape (n,)."""
    for name in ("seq", LINE):
        if name in log.batch.schema.names and not log.batch.column(name).null_count:
            return np.asarray(log.batch.column(name).to_numpy(), dtype=np.intp)
    return np.arange(1, len(log) + 1)


def check_candidate(candidate: CandidateSpec, *, arms: Sequence[ArmName]) -> None:
    """Raise ConfigError if a policy would fall back: it names an unknown arm, or was trained for other arms."""
    policy = make_policy(candidate.what, params=candidate.params)
    try:
        check_arms(policy, arms=arms, where=candidate.name)
    except ConfigError as error:
        if error.field is None or error.field.count(".") != 1:  # the remedy below is not for an inner policy's params
            raise
        if "--param" in (error.remedy or ""):
            raise
        remedy = f"{error.remedy}; then give --param {error.field}=VALUE"
        raise ConfigError(error.message, field=error.field, remedy=remedy) from error


def settings_in_force(settings: Settings, *, arms: Sequence[ArmName], floor: float | None) -> Settings:
    """The settings with this floor, unless it is None, and without an incumbent that the log lacks."""
    changes: dict[str, Any] = {} if floor is None else {"floor": floor, "cold_start_floor": 0.0}
    if settings.policy.incumbent not in arms:
        changes["incumbent"] = None
    return settings.model_copy(update={"policy": settings.policy.model_copy(update=changes)})


def current_settings(log: MemoryLog, *, plan: Plan, settings: Settings) -> Settings | None:
    """The settings of the serving policy if this policy is the baseline (see `Plan.baseline`), else None."""
    if plan.baseline not in (CURRENT, None):
        return None
    if log.recorded.serving is not None or plan.baseline == CURRENT:
        return log.recorded.serving or settings
    served = (log.log.fields["policy"] == settings.policy.label) & ~imported(log.log)
    return settings if served.any() else None


def rows_to_judge(log: MemoryLog, *, snapshots: Sequence[SnapshotInfo]) -> tuple[Flags, list[str]]:
    """Returns (rows to judge, shape (n,); notes on the other rows). Raises InvalidInput if no row is left.

    Decisions before the log's `since` are not judged, and no questions that a snapshot has learned, because an estimate
    on them would be too optimistic.
    """
    array, opened = log.log, log.opened
    judged = np.ones(len(array), dtype=np.bool_) if opened.since is None else array.made_at >= opened.since
    seen = np.zeros(len(array), dtype=np.bool_)
    for info in snapshots:
        # A new ledger learns all earlier decisions of its store.
        is_own = np.array(
            [(opened.ledger or policy) == info.policy for policy in array.fields["policy"]], dtype=np.bool_
        )
        learned = np.where(is_own, seqs_of(array) <= info.last_seq, array.made_at <= info.made_at)
        seen |= judged & np.isin(array.questions, array.questions[learned])
    if not seen.any():
        return judged, []
    count = int(np.count_nonzero(seen))
    if count == np.count_nonzero(judged):
        message = f"all {count} rows were learned by a snapshot, or ask questions that it has learned"
        remedy = "judge an older version, log more traffic, or name the policy instead, which is cross-fitted"
        raise InvalidInput(message, field="policy", remedy=remedy)
    reason = "a snapshot has learned them, or may have, or has learned their question"
    return judged & ~seen, [f"{count} rows are left out: {reason}"]
