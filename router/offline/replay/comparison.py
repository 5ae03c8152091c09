"""What is compared with what: the policy that serves as the baseline, and what each side has learned."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sqlalchemy import select

from ragbandit.router.config.settings import FLOORS, Settings
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.offline.estimation import Flags
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.replay.plan import (
    CURRENT,
    LOGGED,
    CandidatePmf,
    CandidateResult,
    CandidateSpec,
    EstimateWithInterval,
    LoggedPolicy,
    Plan,
    ReplayResult,
)
from ragbandit.router.policies import CONSERVATIVE
from ragbandit.router.policies.base import Policy
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policies, snapshots
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import IMPORTED, ArmName, Matrix, PolicyLabel, SnapshotInfo

if TYPE_CHECKING:
    from ragbandit.router.offline.replay.opening import MemoryLog


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedPolicies:
    """The policies of a store, by the version that a decision names and by its ledger."""

    versions: Mapping[str, LoggedPolicy] = field(default_factory=dict)
    #: label -> all policies that ever learned this ledger: that of a version without a record is one of them
    labels: Mapping[str, frozenset[LoggedPolicy]] = field(default_factory=dict)

    def of(self, versions: Iterable[str]) -> tuple[LoggedPolicy, ...]:
        """The policies that may have made decisions with these versions, by name; () where one of them is not known."""
        logged: set[LoggedPolicy] = set()
        for version in versions:
            known = self.versions.get(version)
            of_label = self.labels.get(version.partition("-")[0], frozenset()) if known is None else {known}
            if not of_label:
                return ()
            logged |= of_label
        return tuple(sorted(logged, key=lambda policy: (policy.name, policy.params)))


def logged_policies(database: Database) -> LoggedPolicies:
    """Of a store. Raises StoreError where it cannot be read."""
    versions: dict[str, LoggedPolicy] = {}
    labels: dict[str, set[LoggedPolicy]] = {}
    with database.read() as connection:
        recorded = connection.execute(
            select(snapshots.c.policy, snapshots.c.version, snapshots.c.algorithm, snapshots.c.params)
        )
        for label, version, algorithm, params in recorded:
            versions[version] = LoggedPolicy.of(algorithm, params=json.loads(params))
            labels.setdefault(label, set()).add(versions[version])
        for label, algorithm, params in connection.execute(
            select(policies.c.label, policies.c.algorithm, policies.c.params)
        ):
            labels.setdefault(label, set()).add(LoggedPolicy.of(algorithm, params=json.loads(params)))
    return LoggedPolicies(versions=versions, labels={label: frozenset(each) for label, each in labels.items()})


def serving_settings(ledger: Ledger, *, settings: Settings) -> Settings | None:
    """The settings that a store serves by: the configuration, with the changes of a version that was promoted.

    None where no service wrote the ledger: imports did. Raises StoreError where it cannot be read, ConfigError for a
    version that the configuration no longer allows.
    """
    registered = ledger.registered()
    if registered is None or registered["algorithm"] == IMPORTED:
        return None
    with ledger.database.read() as connection:
        versions = versions_of(connection, base=PolicyLabel(settings.policy.label))
    champion = next((version for version in versions if version.state == "champion" and version.changes), None)
    return settings if champion is None else settings_of(settings, champion)


def served_policy(spec: CandidateSpec, *, settings: Settings) -> Policy:
    """A candidate of the registry, fresh, as a service with these settings would make it if `policy.name` named it.

    Raises ConfigError.
    """
    changes: dict[str, Any] = {"name": spec.what, "params": dict(spec.params)}
    if spec.what == CONSERVATIVE:  # it has an incumbent of its own
        changes["incumbent"] = None
    policy = settings.policy.model_copy(update=changes)
    return policy_of(settings.model_copy(update={"policy": policy}))


def settings_in_force(settings: Settings, *, arms: Sequence[ArmName], floor: float | None) -> Settings:
    """The settings by which candidates are drawn from on a log with these arms.

    floor: of every arm from the first decision on; None: the service's floors. An incumbent that is no arm of the log
    holds nothing back.
    """
    changes: dict[str, Any] = {} if floor is None else {"floor": floor, "cold_start_floor": 0.0}
    if settings.policy.incumbent not in arms:
        changes["incumbent"] = None
    return settings.model_copy(update={"policy": settings.policy.model_copy(update=changes)})


def service_note(settings: Settings) -> str:
    """How candidates are drawn from, in words."""
    policy = settings.policy
    floor = f"{FLOORS:g} / arms" if policy.floor is None else f"{policy.floor:g}"
    words = f"policies and snapshots are judged as they would be served: floor {floor}"
    if policy.cold_start_floor > 0.0 and policy.cold_start_outcomes:
        words += f", {policy.cold_start_floor:g} for an arm until it has {policy.cold_start_outcomes} learned outcomes"
    if policy.incumbent is not None:
        words += f"; policies by name are held back to {policy.incumbent} (harm {policy.harm:g})"
    if policy.holdback is not None:
        words += f"; {policy.holdback.arm} has a holdback of {policy.holdback.share:g}"
    return words


#: probabilities that differ by less are the same but for rounding, and for what a file keeps of a number
_SAME: Final = 1e-6


def may_be_current(plan: Plan) -> bool:
    """Whether a replay by this plan may compare with the policy as it is now."""
    return plan.baseline in (CURRENT, None)


def is_current(log: "MemoryLog", *, candidates: Sequence[CandidateSpec], plan: Plan, settings: Settings) -> bool:
    """Whether candidates on a log that is no store's are compared with the policy as it is now.

    Unasked where one of them reads questions, as the policy would, and the service with these settings decided rows:
    they name its ledger.
    """
    if plan.baseline == CURRENT or not may_be_current(plan) or not any(spec.needs_rows for spec in candidates):
        return plan.baseline == CURRENT
    return any(row.decision.policy == settings.policy.label and IMPORTED not in row.decision.facts for row in log.rows)


def current_candidate(settings: Settings, *, plan: Plan) -> CandidateSpec:
    """The policy that serves, learned from the log in the same way as candidates by name."""
    configured = settings.policy
    name = f"the current {configured.name}" if plan.learn else f"{configured.name} as it is now"
    return CandidateSpec(name=name, kind="policy", what=configured.name, params=configured.params, current=settings)


def with_sides(
    result: ReplayResult,
    *,
    candidates: Sequence[CandidateSpec],
    candidate_pmfs: Sequence[CandidatePmf],
    served: Mapping[str, Policy],
    logged: Matrix,
) -> ReplayResult:
    """The result with what each candidate learned from, and without a verdict where a policy is compared with itself.

    candidates, candidate_pmfs: in the order of the result's. served: the policies of the registry among them, by name.
    logged: what served on the rows that are judged, shape (n, K).
    """
    current = next((pmf.pmf for pmf, spec in zip(candidate_pmfs, candidates, strict=True) if spec.current), None)
    rival = logged if result.plan.baseline == LOGGED else current
    sides = []
    for spec, pmf, candidate in zip(candidates, candidate_pmfs, result.candidates, strict=True):
        side = _with_side(candidate, spec=spec, policy=served.get(spec.name), result=result)
        if rival is not None and spec.learns and not spec.current and np.abs(pmf.pmf - rival).max() < _SAME:
            side = _identical(side)
        sides.append(side)
    return replace(result, candidates=tuple(sides))


def _identical(candidate: CandidateResult) -> CandidateResult:
    """A candidate with the probabilities of what it is compared with, on every row."""
    none = EstimateWithInterval(value=0.0, low=0.0, high=0.0)
    return replace(candidate, difference=none, same_policy=True, verdict="same policy", missing=None, rows_needed=None)


def _with_side(
    candidate: CandidateResult, *, spec: CandidateSpec, policy: Policy | None, result: ReplayResult
) -> CandidateResult:
    if policy is None:
        return replace(candidate, learned="before") if spec.kind == "snapshot" else candidate
    if spec.current and not result.plan.learn:  # its name says it
        return candidate
    candidate = replace(candidate, learned="along" if result.plan.learn else "folds")
    if not _is_logged(policy, result=result):
        return candidate
    verdict = "same policy" if candidate.verdict in ("better", "worse") else candidate.verdict
    return replace(candidate, same_policy=True, verdict=verdict, rows_needed=None)


def _is_logged(policy: Policy, *, result: ReplayResult) -> bool:
    """Whether the policy is compared with itself.

    Learned from the log it is by its name alone: other params could not tell what having learned is worth from what
    they change. Learning along the log, with other params or another weight of cost, it is another policy.
    """
    if result.plan.baseline != LOGGED or not result.logged:
        return False
    mine = LoggedPolicy.of(policy.algorithm, params=policy.params)
    if not result.plan.learn:
        return {each.name for each in result.logged} == {mine.name}
    return set(result.logged) == {mine} and result.plan.weight is None


def judged_rows(log: "MemoryLog", *, snapshots: Sequence[SnapshotInfo]) -> tuple[Flags, list[str]]:
    """The rows that are judged, shape (n,), and what the report says of the others.

    Not judged are rows decided before `log.since`; rows of a warm start, beside which there is traffic: no policy that
    served drew them; and rows that a snapshot has learned, or that ask a question which it has learned: an estimate on
    them is too optimistic. Raises InvalidInput where no row is left.
    """
    judged, notes = np.ones(len(log.rows), dtype=np.bool_), []
    if log.since is not None:
        judged &= log.log.made_at >= log.since
    elsewhere = judged & np.array([IMPORTED in row.decision.facts for row in log.rows], dtype=np.bool_)
    if elsewhere.any() and (judged & ~elsewhere).any():
        judged &= ~elsewhere
        notes.append(f"{np.count_nonzero(elsewhere):,} rows were imported: policies learn them, none is judged on them")
    known = np.zeros(len(log.rows), dtype=np.bool_)
    for info in snapshots:
        learned = np.array([_has_learned(info, row, ledger=log.ledger) for row in log.rows], dtype=np.bool_)
        known |= judged & np.isin(log.log.questions, log.log.questions[learned])
    if not known.any():
        return judged, notes
    count = int(np.count_nonzero(known))
    if count == np.count_nonzero(judged):
        raise InvalidInput(
            f"all {count} rows were learned by a snapshot, or ask questions that it has learned",
            field="policy",
            remedy="judge an older version, log more traffic, or name the policy instead, which is cross-fitted",
        )
    reason = "a snapshot has learned them, or may have, or has learned their question"
    return judged & ~known, [*notes, f"{count} rows are left out: {reason}"]


def _has_learned(info: SnapshotInfo, row: Logged, *, ledger: str | None) -> bool:
    """True if the snapshot has learned this row: of its own ledger by the seq, of any other if it was there in time.

    A new label learns all decisions of its store, so another ledger's snapshot is not innocent of the older rows.
    """
    if (ledger or row.decision.policy) == info.policy:
        return row.seq <= info.last_seq
    return row.decision.made_at <= info.made_at
