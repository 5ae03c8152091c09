"""Overview of versions, for the command line, HTTP and the dashboard: their states, what they wait for, their verdicts.

Bounded reads: the versions of one configuration, the newest verdicts, and the newest decisions.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

from sqlalchemy import select

from ragbandit.router.config.loading import with_changes
from ragbandit.router.config.named_sections import expanded
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.rollouts.verbs import SECTIONS, Verb, next_weight, verbs_of
from ragbandit.router.storage.policy_versions import control_of, verdicts_of, version_named, versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import CANDIDATE, Json, PolicyControl, PolicyLabel, PolicyVerdict, PolicyVersion

#: what a version may not change: its label is made for it; incumbent and holdback are those of all versions
_NOT_THEIRS: Final = ("label", "incumbent", "harm", "holdback")


def facts_in(text: str) -> dict[str, Json]:
    """The facts of a decision as its row has them; none of a damaged one, which `ragbandit verify` finds."""
    try:
        facts = json.loads(text)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def candidates_in(facts: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """What a decision's facts say of each version that was live, the first that was asked first."""
    first = facts.get(CANDIDATE)
    others = first.get("others") if isinstance(first, Mapping) else None
    return [one for one in (first, *(others if isinstance(others, list) else ())) if isinstance(one, Mapping)]


def candidate_in(facts: Mapping[str, Json], version: str) -> Mapping[str, Json] | None:
    """What a decision's facts say of this version; None where it was not live."""
    return next((one for one in candidates_in(facts) if one.get("version") == version), None)


def settings_of(settings: Settings, version: PolicyVersion) -> Settings:
    """The configuration with what the version changes, and with its ledger; checked like a configuration.

    Raises ConfigError naming the setting: one that a version cannot change, a policy that cannot be made, an arm that
    the configuration has under another meaning.
    """
    return changed_settings(settings, version.changes, label=version.label)


def changed_settings(settings: Settings, changes: Mapping[str, Json], *, label: str) -> Settings:
    """`settings_of` for a version with these changes and this label, whether or not there is one."""
    sections: dict[str, Mapping[str, object]] = {}
    for section, given in changes.items():
        if section not in SECTIONS or not isinstance(given, Mapping):
            raise ConfigError("no version can change it", field=section, remedy="change policy, reward or arms")
        sections[section] = given
    for name in _NOT_THEIRS:
        if name in sections.get("policy", {}):
            remedy = "set it in the configuration, for all versions"
            raise ConfigError("no version can change it", field=f"policy.{name}", remedy=remedy)
    changed = with_changes(settings, sections) if sections else settings
    for arm, params in expanded(sections.get("arms", {})).items():
        if arm in settings.arms and settings.arms[arm] != (params or {}):
            message = "the configuration has an arm of this name with other params, and workers run that one"
            raise ConfigError(message, field=f"arms.{arm}", remedy="give the new arm a name of its own")
    changed = changed.model_copy(update={"policy": changed.policy.model_copy(update={"label": label})})
    check_policy(changed)
    return changed


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
        newest = select(decisions.c.facts).order_by(decisions.c.made_at.desc()).limit(NEWEST)
        rows = connection.execute(newest).scalars().all()
    notes = [note for row in rows if (note := candidate_in(facts_in(row), name)) is not None]
    faults = [str(note["fault"]) for note in notes if note.get("fault")]
    # A champion that never had another one before it cannot give way to it.
    former = any(one.state == "retired" and one.former == "champion" for one in others)
    return VersionDetail(
        **asdict(version),
        possible=tuple(verb for verb in verbs_of(version) if former or version.state != "champion"),
        next_weight=next_weight(version, settings=settings) if version.state in ("shadow", "canary") else None,
        killed=control.killed,
        recent=RecentFaults(decisions=len(notes), faults=len(faults), last_fault=faults[0] if faults else None),
        verdicts=tuple(verdicts),
    )
