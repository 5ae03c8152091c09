"""The service behind a log: what its store records of the policies that decided, and candidates as it would serve them.

Floors, cold start, incumbent and params are the service's own: `policy_of` makes the policy,
`drawn_by_arms` draws (candidates.py).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select

from ragbandit.router.config.settings import FLOORS, Settings
from ragbandit.router.learning.lessons import policy_of
from ragbandit.router.offline.replay.plan import CandidateSpec, parse_candidates
from ragbandit.router.offline.replay.results import CandidateResult, LoggedPolicy, ReplayResult
from ragbandit.router.policies import CONSERVATIVE
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policies, snapshots
from ragbandit.shared.types import ArmName


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


def with_sides(result: ReplayResult, *, served: Mapping[str, Policy]) -> ReplayResult:
    """The result with what each candidate learned from, and without a verdict where a policy is compared with itself.

    served: the policies of the registry among the candidates, by candidate.
    """
    specs = parse_candidates([candidate.name for candidate in result.candidates])
    candidates = [
        _with_side(candidate, spec=spec, policy=served.get(spec.name), result=result)
        for spec, candidate in zip(specs, result.candidates, strict=True)
    ]
    return replace(result, candidates=tuple(candidates))


def _with_side(
    candidate: CandidateResult, *, spec: CandidateSpec, policy: Policy | None, result: ReplayResult
) -> CandidateResult:
    if policy is None:
        return replace(candidate, learned="before") if spec.kind == "snapshot" else candidate
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
    if result.plan.baseline != "logged" or not result.logged:
        return False
    mine = LoggedPolicy.of(policy.algorithm, params=policy.params)
    if not result.plan.learn:
        return {each.name for each in result.logged} == {mine.name}
    return set(result.logged) == {mine} and result.plan.weight is None
