"""Versions with their states and evidence, for the command line, HTTP and the dashboard."""

from dataclasses import asdict, dataclass

from ragbandit.router.rollouts.evidence import Evidence, evidence_on
from ragbandit.router.rollouts.verbs import Verb, verbs_of
from ragbandit.router.storage.policy_versions import control_of, previous_champion, version_named, versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import PolicyControl, PolicyLabel, PolicyVersion


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyList:
    """All versions of a configuration, and the kill switch."""

    control: PolicyControl
    """The kill switch."""
    policies: tuple[PolicyVersion, ...]
    """The versions, oldest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionDetail(PolicyVersion):
    """A version, and the evidence on it."""

    possible: tuple[Verb, ...]
    """Actions that the state of the version allows."""
    evidence: Evidence | None
    """The evidence since the version entered shadow; null in other states."""


def list_versions(database: Database, *, base: PolicyLabel) -> PolicyList:
    """The kill switch, and all versions of the policy with this label."""
    with database.read() as connection:
        control, versions = control_of(connection, base=base), versions_of(connection, base=base)
    return PolicyList(control=control, policies=tuple(versions))


def version_detail(database: Database, name: str, *, base: PolicyLabel, now: float) -> VersionDetail:
    with database.read() as connection:
        version = version_named(connection, name, base=base)
        has_previous = previous_champion(versions_of(connection, base=base)) is not None
    return VersionDetail(
        **asdict(version),
        possible=tuple(verb for verb in verbs_of(version) if has_previous or verb != "rollback"),
        evidence=evidence_on(database, version, now=now),
    )
