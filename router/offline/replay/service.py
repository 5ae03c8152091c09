"""The service behind a log: what its store records of the policies that decided, and candidates as it would serve them.

Floors, cold start, incumbent and params are the service's own: `policy_of` makes the policy,
`drawn_by_arms` draws (candidates.py).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from ragbandit.router.config.settings import FLOORS, Settings
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.offline.replay.plan import CandidateSpec, LoggedPolicy
from ragbandit.router.policies import CONSERVATIVE
from ragbandit.router.policies.base import Policy
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policies, snapshots
from ragbandit.shared.types import IMPORTED, ArmName, PolicyLabel


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
