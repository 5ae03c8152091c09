"""Overview of versions, for the command line, HTTP and the dashboard: their states, what they wait for, their verdicts.

Bounded reads: the versions of one configuration, the newest verdicts, and the newest decisions.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

from sqlalchemy import select

from ragbandit.router.config.rollout import RolloutSettings
from ragbandit.router.rollouts.served import candidate_in
from ragbandit.router.rollouts.verbs import Verb, next_weight, verbs_of
from ragbandit.router.storage.policy_versions import control_of, verdicts_of, version_named, versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import Json, PolicyControl, PolicyLabel, PolicyVerdict, PolicyVersion

#: newest decisions in which faults of a candidate are counted, and verdicts that are shown
NEWEST: Final = 200
VERDICTS: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyList:
    """All versions of a configuration, and the kill switch."""

    control: PolicyControl
    """The kill switch."""
    policies: tuple[PolicyVersion, ...]
    """The versions, the oldest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentFaults:
    """How often a candidate failed in the newest decisions."""

    decisions: int
    """The newest decisions for which it was asked."""
    faults: int
    """Those among them in which it gave no pmf that could be used."""
    last_fault: str | None
    """Why, the last time; null where it never failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionDetail(PolicyVersion):
    """A version with its verdicts."""

    possible: tuple[Verb, ...]
    """What can be done to it in its state."""
    next_weight: float | None
    """The share that `step` leads to; null where there is none."""
    killed: Literal["arm", "champion"] | None
    """Whether the kill switch is thrown, and how."""
    recent: RecentFaults
    """How often it failed in the newest decisions."""
    verdicts: tuple[PolicyVerdict, ...]
    """Verdicts of the newest looks at the evidence, the newest first."""


def overview(database: Database, *, base: PolicyLabel) -> PolicyList:
    """All versions, the oldest first. Raises StoreError."""
    with database.read() as connection:
        control, versions = control_of(connection, base=base), versions_of(connection, base=base)
    return PolicyList(control=control, policies=tuple(versions))


def detail(database: Database, name: str, *, base: PolicyLabel, settings: RolloutSettings) -> VersionDetail:
    """One version with its verdicts, what can be done to it, and how often it failed lately. Raises NotFound."""
    with database.read() as connection:
        version = version_named(connection, name, base=base)
        verdicts = verdicts_of(connection, name, limit=VERDICTS)
        control = control_of(connection, base=base)
        others = versions_of(connection, base=base)
    # A champion that never had another one before it cannot give way to it.
    former = any(one.state == "retired" and one.former == "champion" for one in others)
    return VersionDetail(
        **asdict(version),
        possible=tuple(verb for verb in verbs_of(version) if former or version.state != "champion"),
        next_weight=next_weight(version, settings=settings) if version.state in ("shadow", "canary") else None,
        killed=control.killed,
        recent=recent_faults(database, version),
        verdicts=tuple(verdicts),
    )


def recent_faults(database: Database, version: PolicyVersion) -> RecentFaults:
    """Of the newest decisions: how many it was asked about, how often it failed, and why the last time."""
    query = select(decisions.c.facts).order_by(decisions.c.made_at.desc()).limit(NEWEST)
    with database.read() as connection:
        rows = connection.execute(query).scalars().all()
    notes = [note for row in rows if (note := candidate_in(_facts(row), version.name)) is not None]
    faults = [str(note["fault"]) for note in notes if note.get("fault")]
    return RecentFaults(decisions=len(notes), faults=len(faults), last_fault=faults[0] if faults else None)


def _facts(text: str) -> Mapping[str, Json]:
    try:
        facts = json.loads(text)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
