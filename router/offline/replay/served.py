"""Candidates as the service would serve them: its floors, cold start, incumbent, and params of a new ledger.

All of them are the service's own: `policy_of` makes the policy, `drawn_by_arms` draws (candidates.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.lessons import policy_of
from ragbandit.router.offline.replay.candidates import CandidateSpec, parse_candidates
from ragbandit.router.offline.replay.memory_log import MemoryLog
from ragbandit.router.offline.replay.results import Candidate, LoggedPolicy, ReplayResult
from ragbandit.router.policies import CONSERVATIVE
from ragbandit.router.policies.base import Policy

__all__ = ["served_policy", "service_note", "settings_in_force", "with_sides"]


def served_policy(spec: CandidateSpec, *, settings: Settings, registered: Mapping[str, Any] | None) -> Policy:
    """A candidate of the registry, fresh, as a service with these settings would make it if `policy.name` named it.

    registered: the row of the service's ledger; None: a ledger that begins now. Raises ConfigError.
    """
    changes: dict[str, Any] = {"name": spec.what, "params": dict(spec.params)}
    if spec.what == CONSERVATIVE:  # it has an incumbent of its own
        changes["incumbent"] = None
    policy = settings.policy.model_copy(update=changes)
    return policy_of(settings.model_copy(update={"policy": policy}), registered=registered)


def settings_in_force(settings: Settings, *, log: MemoryLog, floor: float | None) -> Settings:
    """The settings by which candidates are drawn from on this log.

    floor: of every arm from the first decision on; None: the service's floors. An incumbent that is no arm of the log
    holds nothing back.
    """
    changes: dict[str, Any] = {} if floor is None else {"floor": floor, "cold_start_floor": 0.0}
    if settings.policy.incumbent not in log.log.arms:
        changes["incumbent"] = None
    return settings.model_copy(update={"policy": settings.policy.model_copy(update=changes)})


def service_note(settings: Settings) -> str:
    """How candidates are drawn from, in words."""
    policy = settings.policy
    words = f"policies and snapshots are judged as they would be served: floor {policy.floor_share:g}"
    if policy.cold_start_share > policy.floor_share and policy.cold_start_outcomes:
        words += f", {policy.cold_start_share:g} for an arm until it has {policy.cold_start_outcomes} learned outcomes"
    if policy.incumbent is not None:
        words += f"; policies by name are held back to {policy.incumbent} (harm {policy.harm:g})"
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


def _with_side(candidate: Candidate, *, spec: CandidateSpec, policy: Policy | None, result: ReplayResult) -> Candidate:
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
