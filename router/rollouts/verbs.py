"""Actions that change the state of a version, for people and for the evaluator.

    draft -> shadow -> canary -> champion -> retired

The evaluator only rolls back; people do the rest. A live version can be paused or rolled back, and a person may put a
rolled back version into shadow again. Rolling back the champion makes the previous champion decide again. Every action
is one transaction that locks the row of the kill switch, so versions of a configuration are changed one at a time.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from sqlalchemy import Connection, select

from ragbandit.router.config.grids import expanded
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts.verdicts import comparison_of, is_proven
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policy_control, policy_versions
from ragbandit.shared.errors import Conflict, InvalidInput
from ragbandit.shared.redaction import credentials_in
from ragbandit.shared.types import LIVE_STATES, ArmName, Json, PolicyControl, PolicyLabel, PolicyVersion, VersionState

Verb = Literal["shadow", "canary", "promote", "pause", "resume", "rollback", "retire"]

SECTIONS: Final = ("policy", "reward", "arms")
#: maximum number of versions of one configuration that are neither rolled back nor retired
MAX_OPEN: Final = 100
MAX_REASON: Final = 500
MAX_CHANGES: Final = 100_000
#: share of a canary in what is served: without another one, and at most
CANARY_WEIGHT: Final = 0.05
MAX_CANARY_WEIGHT: Final = 0.5
_NAME: Final = re.compile(r"[a-z0-9_]{1,20}")
_MAX_LABEL: Final = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    verb: Verb
    name: str
    base: PolicyLabel
    actor: str  #: "key:PUBLIC_ID", "cli:USER@HOST", or "evaluator"
    reason: str
    now: float
    #: share of the version's pmf in the served pmf, for "canary" and "resume"; None for CANARY_WEIGHT
    weight: float | None = None
    #: True if "promote" may contradict the evidence; the stored reason and the audit log then contain "forced"
    force: bool = False
    #: the action is refused if the version no longer has this revision; None accepts every revision
    revision: int | None = None
    facts: Mapping[str, Json] | None = None


def verbs_of(version: PolicyVersion) -> list[Verb]:
    return [verb for verb, (states, _) in TRANSITIONS.items() if version.state in states]


def add(
    database: Database,
    *,
    base: PolicyLabel,
    changes: Mapping[str, Json],
    name: str | None = None,
    actor: str,
    reason: str,
    now: float,
) -> PolicyVersion:
    """Add a version as a draft, without a check that its settings give a valid policy. Raises InvalidInput, Conflict.

    changes: settings that differ from the configuration, by section: {"policy": {...}, "reward": {...}, ...}
    name: None for the first free name of v1, v2, ...
    """
    _check_changes(changes)
    arms = changes.get("arms")
    if isinstance(arms, Mapping):  # a grid is stored as single arms, since workers and routers use their names
        changes = {**changes, "arms": expanded(arms)}
    check_reason(reason)
    with database.write() as connection:
        _lock(connection, base=base)
        versions = store.versions_of(connection, base=base)
        if len([version for version in versions if version.state not in ("rolled_back", "retired")]) > MAX_OPEN:
            message = f"more than {MAX_OPEN} versions are neither rolled back nor retired"
            raise Conflict(message, field="name", remedy="retire some: ragbandit policy retire")
        _check_arms(changes, versions)
        if name is None:  # names are unique in the store, also across configurations
            names = set(connection.execute(select(policy_versions.c.name)).scalars())
            name = next(f"v{n}" for n in range(1, len(names) + 2) if f"v{n}" not in names)
        version = PolicyVersion(
            name=name,
            base=base,
            label=_label(name, base=base),
            state="draft",
            weight=0.0,
            former=None,
            changes=dict(changes),
            revision=1,
            reason=reason,
            waits_for="a person: ragbandit policy shadow " + name,
            made_by=actor,
            made_at=now,
            since=now,
        )
        return store.add_version(connection, version)


def perform(database: Database, act: Act, *, settings: RolloutSettings) -> PolicyVersion:
    """Carry out an action. Raises NotFound, InvalidInput, or Conflict if the state or another version forbids it."""
    with database.write() as connection:
        return perform_within(connection, act, settings=settings)


def perform_within(connection: Connection, act: Act, *, settings: RolloutSettings) -> PolicyVersion:
    check_reason(act.reason)
    _lock(connection, base=act.base)
    seen = store.version_named(connection, act.name, base=act.base)
    if act.revision is not None and act.revision != seen.revision:
        message = f"the version {seen.name!r} was changed meanwhile: it is {_state_in_words(seen)} now"
        remedy = f"look at it again, then decide: ragbandit policy show {seen.name}"
        raise Conflict(message, field="revision", remedy=remedy)
    states, change = TRANSITIONS[act.verb]
    if seen.state not in states:
        possible = ", ".join(verbs_of(seen)) or "nothing; add a new version"
        message = f"{act.verb} is not possible while {seen.name!r} is {_state_in_words(seen)}"
        raise Conflict(message, field="state", remedy=f"possible now: {possible}")
    return change(connection, seen, act, settings)


def kill(
    database: Database,
    *,
    base: PolicyLabel,
    arm: str | None,
    offered: Sequence[str],
    actor: str,
    reason: str,
    now: float,
) -> PolicyControl:
    """Turn the kill switch on: every question gets `arm`. None lets the champion decide. Raises InvalidInput."""
    check_reason(reason)
    if arm is not None and arm not in offered:
        raise InvalidInput(f"the arm {arm!r:.80} is not offered", field="arm", remedy=f"use {', '.join(offered)}")
    pinned = None if arm is None else ArmName(arm)
    killed: Literal["arm", "champion"] = "champion" if pinned is None else "arm"
    with database.write() as connection:
        return store.set_switch(connection, base=base, killed=killed, arm=pinned, actor=actor, reason=reason, now=now)


def unkill(database: Database, *, base: PolicyLabel, actor: str, reason: str, now: float) -> PolicyControl:
    check_reason(reason)
    with database.write() as connection:
        _lock(connection, base=base)
        if store.control_of(connection, base=base).killed is None:
            remedy = "see: ragbandit policy show, or GET /v1/policies"
            raise Conflict("the kill switch is off", field="killed", remedy=remedy)
        return store.set_switch(connection, base=base, killed=None, arm=None, actor=actor, reason=reason, now=now)


def _shadow(connection: Connection, seen: PolicyVersion, act: Act, settings: RolloutSettings) -> PolicyVersion:
    others = [version for version in _others(connection, seen) if version.state == "shadow"]
    # The limit does not apply to a canary: it must always be possible to take a canary out of traffic.
    if seen.state != "canary" and len(others) >= settings.shadows:
        names = ", ".join(version.name for version in others)
        message = f"{len(others)} versions are in shadow already: {names}"
        raise Conflict(message, field="state", remedy="retire one of them")
    return _change(connection, seen, act, state="shadow")


def _canary(connection: Connection, seen: PolicyVersion, act: Act, _settings: RolloutSettings) -> PolicyVersion:
    weight = CANARY_WEIGHT if act.weight is None else act.weight
    if not 0.0 < weight <= MAX_CANARY_WEIGHT:
        remedy = f"use a weight above 0, and at most {MAX_CANARY_WEIGHT:g}"
        raise InvalidInput(f"the weight {weight:g} is not possible", field="weight", remedy=remedy)
    if seen.state == "canary" and weight == seen.weight:
        raise Conflict(f"{seen.name!r} has the weight {weight:g} already", field="weight", remedy="give another weight")
    _check_canary(connection, seen)
    return _change(connection, seen, act, state="canary", weight=weight)


def _promote(connection: Connection, seen: PolicyVersion, act: Act, settings: RolloutSettings) -> PolicyVersion:
    present = seen.state, seen.weight
    newest = store.verdicts_of(connection, seen.name, limit=1)
    compared = [
        comparison_of(verdict.facts)
        for verdict in newest
        if verdict.made_at >= seen.since and (verdict.state, verdict.weight) == present and verdict.kind == "better"
    ]
    is_better = any(found is not None and is_proven(found, margin=settings.margin) for found in compared)
    if not (is_better or act.force):
        why = seen.waits_for or "it was not judged yet"
        remedy = 'wait, or promote it against the evidence: --force, over HTTP "force": true'
        raise Conflict(f"the evidence does not show that {seen.name!r} is better: {why}", field="force", remedy=remedy)
    cause = replace(act, reason=f"{seen.name} was promoted")
    for version in _others(connection, seen):
        if version.state == "champion":
            _change(connection, version, cause, state="retired", former="champion", verb="retire")
    _restart_candidates(connection, seen, cause)
    if not is_better:
        act = replace(act, reason=f"forced: {act.reason}", facts={**(act.facts or {}), "forced": True})
    return _change(connection, seen, act, state="champion", weight=1.0)


def _resume(connection: Connection, seen: PolicyVersion, act: Act, settings: RolloutSettings) -> PolicyVersion:
    return (_canary if seen.former == "canary" else _shadow)(connection, seen, act, settings)


def _rollback(connection: Connection, seen: PolicyVersion, act: Act, _settings: RolloutSettings) -> PolicyVersion:
    if seen.state != "champion":
        return _change(connection, seen, act, state="rolled_back")
    former_champions = [
        version for version in _others(connection, seen) if version.state == "retired" and version.former == "champion"
    ]
    if not former_champions:
        message = f"{seen.name!r} is the first champion, so there is no previous one"
        raise Conflict(message, field="state", remedy="pin an arm: ragbandit policy kill ARM")
    previous = max(former_champions, key=lambda version: version.since)
    rolled_back = _change(connection, seen, act, state="rolled_back")
    cause = replace(act, reason=f"{seen.name} was rolled back: {act.reason}"[:MAX_REASON])
    _change(connection, previous, cause, state="champion", weight=1.0, verb="promote")
    _restart_candidates(connection, seen, cause)
    return rolled_back


def _restart_candidates(connection: Connection, seen: PolicyVersion, cause: Act) -> None:
    """Put all other candidates into shadow again, since their evidence compares them with the former champion."""
    for version in _others(connection, seen):
        if version.state in LIVE_STATES:
            reason = f"compared with another champion from here on: {cause.reason}"[:MAX_REASON]
            _change(connection, version, replace(cause, reason=reason), state="shadow", verb="shadow")


def _pause(connection: Connection, seen: PolicyVersion, act: Act, _settings: RolloutSettings) -> PolicyVersion:
    return _change(connection, seen, act, state="paused", former=seen.state)


def _retire(connection: Connection, seen: PolicyVersion, act: Act, _settings: RolloutSettings) -> PolicyVersion:
    return _change(connection, seen, act, state="retired")


_Change = Callable[[Connection, PolicyVersion, Act, RolloutSettings], PolicyVersion]
#: action -> (states in which the action is allowed, function that carries it out)
TRANSITIONS: Final[Mapping[Verb, tuple[tuple[VersionState, ...], _Change]]] = MappingProxyType(
    {
        "shadow": (("draft", "canary", "rolled_back"), _shadow),
        "canary": (("shadow", "canary"), _canary),
        "promote": (("shadow", "canary"), _promote),
        "pause": (("shadow", "canary"), _pause),
        "resume": (("paused",), _resume),
        "rollback": (("shadow", "canary", "paused", "champion"), _rollback),
        "retire": (("draft", "shadow", "canary", "paused", "rolled_back"), _retire),
    }
)


def _change(
    connection: Connection, seen: PolicyVersion, act: Act, *, verb: str | None = None, **values: Any
) -> PolicyVersion:
    entry: dict[str, Any] = {"actor": act.actor, "now": act.now, "reason": act.reason, "facts": act.facts}
    return store.change_version(connection, seen, action=f"policy.{verb or act.verb}", **entry, **values)


def _others(connection: Connection, seen: PolicyVersion) -> list[PolicyVersion]:
    return [version for version in store.versions_of(connection, base=seen.base) if version.name != seen.name]


def _check_canary(connection: Connection, seen: PolicyVersion) -> None:
    canary = next((version for version in _others(connection, seen) if version.state == "canary"), None)
    if canary is not None:
        remedy = f"wait for it, or: ragbandit policy shadow {canary.name}"
        message = f"{canary.name!r} is in canary already, and there is one at a time"
        raise Conflict(message, field="state", remedy=remedy)


def _lock(connection: Connection, *, base: PolicyLabel) -> None:
    """Block other changes of this configuration's versions until the transaction ends."""
    connection.execute(select(policy_control.c.base).where(policy_control.c.base == base).with_for_update())


def _label(name: str, *, base: PolicyLabel) -> PolicyLabel:
    label = f"{base}.{name}"
    if not _NAME.fullmatch(name) or len(label) > _MAX_LABEL:
        remedy = f"use 1 to {min(20, _MAX_LABEL - len(base) - 1)} small letters, digits and underscores"
        raise InvalidInput(f"{name!r} is not a valid name of a version", field="name", remedy=remedy)
    return PolicyLabel(label)


def _check_changes(changes: Mapping[str, Json]) -> None:
    for section, values in changes.items():
        if section not in SECTIONS or not isinstance(values, Mapping):
            remedy = f"a version changes {', '.join(SECTIONS)}, each a mapping of settings"
            raise InvalidInput(f"{section!r} cannot be changed by a version", field="changes", remedy=remedy)
        field = credentials_in(values, field=section)
        if field is not None:
            message = "contains an address with a user, a password or a key, which would be stored with the version"
            remedy = "send it as a header (headers_env of the arm http); or put the arm into the configuration, with "
            raise InvalidInput(message, field=field, remedy=f"{remedy}this param in the environment")
    if len(canonical(dict(changes))) > MAX_CHANGES:
        message = f"the changes have more than {MAX_CHANGES:,} characters as JSON"
        raise InvalidInput(message, field="changes", remedy="change fewer settings")


def _check_arms(changes: Mapping[str, Json], versions: Sequence[PolicyVersion]) -> None:
    """Raise Conflict if another version has an arm of the same name with other params, since names identify arms."""
    arms = changes.get("arms")
    if not isinstance(arms, Mapping):
        return
    for version in versions:
        other_arms = version.changes.get("arms")
        if not isinstance(other_arms, Mapping):
            continue
        for arm, params in arms.items():
            if arm in other_arms and (params or {}) != (other_arms[arm] or {}):
                message = f"the version {version.name!r} offers an arm of this name with other params"
                raise Conflict(message, field=f"arms.{arm}", remedy="give the new arm another name")


def check_reason(reason: str) -> None:
    if not reason.strip() or len(reason) > MAX_REASON:
        remedy = f"give a reason of 1 to {MAX_REASON} characters"
        raise InvalidInput(f"the reason has {len(reason)} characters", field="reason", remedy=remedy)


def _state_in_words(version: PolicyVersion) -> str:
    return f"in canary at {version.weight:.0%}" if version.state == "canary" else version.state.replace("_", " ")
