"""Overview of versions, for the command line, HTTP and the dashboard: their states, what they wait for, their verdicts.

Bounded reads: the versions of one configuration, the newest verdicts, and the newest decisions.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import select

from ragbandit.router.config.rollout import RolloutSettings
from ragbandit.router.rollouts.served import candidate_in
from ragbandit.router.rollouts.verbs import next_weight, verbs_of
from ragbandit.router.storage.policy_versions import control_of, verdicts_of, version_named, versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.router.types import Json, PolicyControl, PolicyLabel, PolicyVerdict, PolicyVersion

__all__ = [
    "NEWEST",
    "Overview",
    "control_facts",
    "detail",
    "overview",
    "recent_faults",
    "verdict_facts",
    "version_facts",
]

#: newest decisions in which faults of a candidate are counted, and verdicts that are shown
NEWEST: Final = 200
VERDICTS: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """All versions of a configuration, and the switch."""

    control: PolicyControl
    versions: tuple[PolicyVersion, ...]

    @property
    def facts(self) -> dict[str, Json]:
        """As JSON."""
        return {"control": control_facts(self.control), "policies": [version_facts(one) for one in self.versions]}


def overview(database: Database, *, base: PolicyLabel) -> Overview:
    """All versions, the oldest first. Raises StoreError."""
    with database.read() as connection:
        control, versions = control_of(connection, base=base), versions_of(connection, base=base)
    return Overview(control=control, versions=tuple(versions))


def detail(database: Database, name: str, *, base: PolicyLabel, settings: RolloutSettings) -> dict[str, Any]:
    """One version with its verdicts, what can be done to it, and how often it failed lately. Raises NotFound."""
    with database.read() as connection:
        version = version_named(connection, name, base=base)
        verdicts = verdicts_of(connection, name, limit=VERDICTS)
        control = control_of(connection, base=base)
        others = versions_of(connection, base=base)
    # A champion that never had another one before it cannot give way to it.
    former = any(one.state == "retired" and one.former == "champion" for one in others)
    possible = [verb for verb in verbs_of(version) if former or version.state != "champion"]
    return {
        **version_facts(version),
        "possible": possible,
        "next_weight": next_weight(version, settings=settings) if version.state in ("shadow", "canary") else None,
        "killed": control.killed,
        "recent": recent_faults(database, version),
        "verdicts": [verdict_facts(one) for one in verdicts],
    }


def recent_faults(database: Database, version: PolicyVersion) -> dict[str, Json]:
    """Of the newest decisions: how many it was asked about, how often it failed, and why the last time."""
    query = select(decisions.c.facts).order_by(decisions.c.made_at.desc()).limit(NEWEST)
    with database.read() as connection:
        rows = connection.execute(query).scalars().all()
    told = [said for row in rows if (said := candidate_in(_facts(row), version.name)) is not None]
    faults = [str(said["fault"]) for said in told if said.get("fault")]
    return {"decisions": len(told), "faults": len(faults), "last_fault": faults[0] if faults else None}


def version_facts(version: PolicyVersion) -> dict[str, Any]:
    """A version as JSON."""
    return {**asdict(version), "changes": dict(version.changes)}


def control_facts(control: PolicyControl) -> dict[str, Any]:
    """The switch as JSON."""
    return asdict(control)


def verdict_facts(verdict: PolicyVerdict) -> dict[str, Any]:
    """A verdict as JSON."""
    return {**asdict(verdict), "facts": dict(verdict.facts)}


def _facts(text: str) -> Mapping[str, Json]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
