"""What a store records of the service that wrote a log: its ledger's policy, its floor, and which policies decided."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.replay.results import LoggedPolicy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policies, snapshots
from ragbandit.shared.types import PolicyLabel

__all__ = ["LoggedPolicies", "ServiceRecord", "logged_policies", "service_record"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedPolicies:
    """The policies of a store, by the version that a decision names and by its ledger."""

    versions: Mapping[str, LoggedPolicy] = field(default_factory=dict)
    #: label -> all policies that ever learned this ledger: that of a version without a record is one of them
    labels: Mapping[str, frozenset[LoggedPolicy]] = field(default_factory=dict)

    def of(self, versions: Iterable[str]) -> tuple[LoggedPolicy, ...]:
        """The policies that may have made decisions with these versions, by name; () where one of them is not known."""
        found: set[LoggedPolicy] = set()
        for version in versions:
            known = self.versions.get(version)
            of_label = self.labels.get(version.partition("-")[0], frozenset()) if known is None else {known}
            if not of_label:
                return ()
            found |= of_label
        return tuple(sorted(found, key=lambda policy: (policy.name, policy.params)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceRecord:
    """Of a log that comes from elsewhere nothing is recorded: a service that begins now."""

    #: the row of the configured ledger; None: it begins now
    registered: Mapping[str, Any] | None = None
    logged: LoggedPolicies = field(default_factory=LoggedPolicies)


def service_record(database: Database, *, settings: Settings) -> ServiceRecord:
    """Of a store, as a service with these settings would find it. Raises StoreError where it cannot be read."""
    ledger = Ledger(database, label=PolicyLabel(settings.policy.label))
    return ServiceRecord(
        registered=ledger.registered(),
        logged=logged_policies(database),
    )


def logged_policies(database: Database) -> LoggedPolicies:
    """Of a store. Raises StoreError where it cannot be read."""
    versions: dict[str, LoggedPolicy] = {}
    labels: dict[str, set[LoggedPolicy]] = {}
    with database.read() as connection:
        made = connection.execute(
            select(snapshots.c.policy, snapshots.c.version, snapshots.c.algorithm, snapshots.c.params)
        )
        for label, version, algorithm, params in made:
            versions[version] = LoggedPolicy.of(algorithm, params=json.loads(params))
            labels.setdefault(label, set()).add(versions[version])
        for label, algorithm, params in connection.execute(
            select(policies.c.label, policies.c.algorithm, policies.c.params)
        ):
            labels.setdefault(label, set()).add(LoggedPolicy.of(algorithm, params=json.loads(params)))
    return LoggedPolicies(versions=versions, labels={label: frozenset(each) for label, each in labels.items()})
