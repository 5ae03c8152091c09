"""Verbs: what moves a version from state to state, for people and for the evaluator alike.

    draft -> shadow -> canary (5, 25, 50 %) -> champion -> retired

A live version can be paused, and taken out: rolled_back, from where a person may put it in shadow again. To roll a
champion back is to let the one before it decide again.

Each verb is one transaction that locks the row which every router reads, so that no two change versions of one
configuration at once; and it may name the revision that was seen. What cannot be done in a state is a Conflict that
says the state and what can be done in it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from sqlalchemy import Connection, select

from ragbandit.router.config.named_sections import expanded
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policy_control, policy_versions
from ragbandit.shared.errors import Conflict, InvalidInput
from ragbandit.shared.redaction import credentials_in
from ragbandit.shared.types import LIVE_STATES, ArmName, Json, PolicyControl, PolicyLabel, PolicyVersion, VersionState

Verb = Literal["shadow", "canary", "step", "promote", "pause", "resume", "rollback", "retire"]

#: sections of the configuration that a version may change
SECTIONS: Final = ("policy", "reward", "arms")
#: versions of one configuration that are neither rolled back nor retired
MAX_OPEN: Final = 100
#: characters of a reason, and of the changes as JSON
MAX_REASON, MAX_CHANGES = 500, 100_000
_NAME: Final = re.compile(r"[a-z0-9_]{1,20}")
_MAX_LABEL: Final = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """What is to be done to a version, by whom, and why."""

    verb: Verb
    name: str
    base: PolicyLabel
    #: "key:PUBLIC_ID", "cli:USER@HOST", or "evaluator"
    actor: str
    reason: str
    #: seconds since the epoch
    now: float
    #: of "canary" and "resume": the share of its pmf in what is served; None: the first of `rollout.steps`
    weight: float | None = None
    #: of "promote": whatever the evidence says. Marked in the reason and in the audit log
    force: bool = False
    #: revision of the version's row that was seen; None: as it is now
    revision: int | None = None
    #: the evidence, for the audit log
    facts: Mapping[str, Json] | None = None


def verbs_of(version: PolicyVersion) -> list[Verb]:
    """What can be done to a version in its state."""
    return [verb for verb, (states, _) in TRANSITIONS.items() if version.state in states]


def next_weight(version: PolicyVersion, *, settings: RolloutSettings) -> float | None:
    """The share that `step` leads to; None where it has the last one already."""
    return next((weight for weight in settings.steps if weight > version.weight + 1e-9), None)


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
    """Add a version as a draft. changes: settings that differ, by section: {"policy": {...}, "reward": {...}, ...}.

    name: None: v1, v2 ... Whether the settings make a policy is not looked at here. Raises InvalidInput, Conflict (the
    name is taken, or MAX_OPEN versions are open).
    """
    _check_changes(changes)
    if isinstance(arms := changes.get("arms"), Mapping):  # workers and routers know arms by the names they come to
        changes = {**changes, "arms": expanded(arms)}
    check_reason(reason)
    with database.write() as connection:
        _lock(connection, base=base)
        versions = store.versions_of(connection, base=base)
        if len([one for one in versions if one.state not in ("rolled_back", "retired")]) > MAX_OPEN:
            raise Conflict(f"{MAX_OPEN} versions are open", field="name", remedy="retire some: ragbandit policy retire")
        _check_arms(changes, versions)
        if name is None:  # names are unique in the store, whatever configuration they are of
            taken = set(connection.execute(select(policy_versions.c.name)).scalars())
            name = next(f"v{n}" for n in range(1, len(taken) + 2) if f"v{n}" not in taken)
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
    """Do it, in a transaction of its own; the version as it is then.

    Raises NotFound; Conflict where the state does not allow it, something else is in the way, or the version was
    changed since `act.revision`; InvalidInput.
    """
    with database.write() as connection:
        return perform_within(connection, act, settings=settings)


def perform_within(connection: Connection, act: Act, *, settings: RolloutSettings) -> PolicyVersion:
    """`perform` in the caller's write transaction."""
    check_reason(act.reason)
    _lock(connection, base=act.base)
    seen = store.version_named(connection, act.name, base=act.base)
    if act.revision is not None and act.revision != seen.revision:
        message, field = f"the version {seen.name!r} was changed meanwhile: it is {_told(seen)} now", "revision"
        raise Conflict(message, field=field, remedy=f"look at it again, then decide: ragbandit policy show {seen.name}")
    states, change = TRANSITIONS[act.verb]
    if seen.state not in states:
        possible = ", ".join(verbs_of(seen)) or "nothing, it is over: add a new version"
        remedy = f"possible now: {possible}"
        raise Conflict(f"{act.verb} is not possible while {seen.name!r} is {_told(seen)}", field="state", remedy=remedy)
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
    """Activate the switch: `arm` for every question, or with None the champion alone; from the next decision on.

    offered: the arms that there are. Candidates keep their states and serve nothing meanwhile. Raises InvalidInput.
    """
    check_reason(reason)
    if arm is not None and arm not in offered:
        raise InvalidInput(f"{arm!r} is not offered", field="arm", remedy=f"one of: {', '.join(offered)}")
    pinned = None if arm is None else ArmName(arm)
    killed: Literal["arm", "champion"] = "champion" if pinned is None else "arm"
    with database.write() as connection:
        return store.set_switch(connection, base=base, killed=killed, arm=pinned, actor=actor, reason=reason, now=now)


def unkill(database: Database, *, base: PolicyLabel, actor: str, reason: str, now: float) -> PolicyControl:
    """Take the switch back: versions decide again. Raises Conflict if none is set."""
    check_reason(reason)
    with database.write() as connection:
        _lock(connection, base=base)
        if store.control_of(connection, base=base).killed is None:
            remedy = "see: ragbandit policy show, or GET /v1/policies"
            raise Conflict("nothing is killed", field="killed", remedy=remedy)
        return store.set_switch(connection, base=base, killed=None, arm=None, actor=actor, reason=reason, now=now)


def _shadow(connection: Connection, seen: PolicyVersion, act: Act, settings: RolloutSettings) -> PolicyVersion:
    others = [one for one in _others(connection, seen) if one.state == "shadow"]
    # A canary may always leave: what stands in its way must not keep it in traffic.
    if seen.state != "canary" and len(others) >= settings.shadows:
        names = ", ".join(one.name for one in others)
        raise Conflict(f"{len(others)} versions are in shadow already: {names}", field="state", remedy="retire one")
    return _change(connection, seen, act, state="shadow")


def _canary(connection: Connection, seen: PolicyVersion, act: Act, settings: RolloutSettings) -> PolicyVersion:
    weight = settings.steps[0] if act.weight is None else act.weight
    if not 0.0 < weight <= settings.steps[-1]:
        remedy = f"above 0, and {settings.steps[-1]:g} (the last of rollout.steps) at most"
        raise InvalidInput(f"{weight:g}", field="weight", remedy=remedy)
    if seen.state == "canary" and weight == seen.weight:
        raise Conflict(f"{seen.name!r} has the weight {weight:g} already", field="weight", remedy="give another one")
    _check_canary(connection, seen)
    return _change(connection, seen, act, state="canary", weight=weight)


def _step(connection: Connection, seen: PolicyVersion, act: Act, settings: RolloutSettings) -> PolicyVersion:
    weight = next_weight(seen, settings=settings)
    if weight is None:
        message = f"{seen.name!r} has the last weight, {seen.weight:g}"
        raise Conflict(message, field="weight", remedy="it can be promoted, or rolled back")
    _check_canary(connection, seen)
    return _change(connection, seen, act, state="canary", weight=weight)


def _promote(connection: Connection, seen: PolicyVersion, act: Act, _settings: RolloutSettings) -> PolicyVersion:
    wanted = ("promote", seen.state, seen.weight)
    newest = store.verdicts_of(connection, seen.name, limit=1)
    fits = any((one.kind, one.state, one.weight) == wanted and one.made_at >= seen.since for one in newest)
    if not (fits or act.force):
        raise Conflict(
            f"the evidence does not say that {seen.name!r} is better: {seen.waits_for or 'it was not looked at yet'}",
            field="force",
            remedy='wait, or promote it whatever the evidence says: --force, over HTTP "force": true',
        )
    why = replace(act, reason=f"{seen.name} was promoted")
    for champion in (one for one in _others(connection, seen) if one.state == "champion"):
        _change(connection, champion, why, state="retired", former="champion", verb="retire")
    _begin_anew(connection, seen, why)
    marked = act if fits else replace(act, reason=f"forced: {act.reason}", facts={**(act.facts or {}), "forced": True})
    return _change(connection, seen, marked, state="champion", weight=1.0)


def _resume(connection: Connection, seen: PolicyVersion, act: Act, settings: RolloutSettings) -> PolicyVersion:
    return (_canary if seen.former == "canary" else _shadow)(connection, seen, act, settings)


def _rollback(connection: Connection, seen: PolicyVersion, act: Act, _settings: RolloutSettings) -> PolicyVersion:
    if seen.state != "champion":
        return _change(connection, seen, act, state="rolled_back")
    former = [one for one in _others(connection, seen) if one.state == "retired" and one.former == "champion"]
    if not former:
        message = f"{seen.name!r} is the champion, and there was none before it"
        raise Conflict(message, field="state", remedy="pin an arm: ragbandit policy kill ARM")
    last = max(former, key=lambda one: one.since)
    gone = _change(connection, seen, act, state="rolled_back")
    why = replace(act, reason=f"{seen.name} was rolled back: {act.reason}"[:MAX_REASON])
    _change(connection, last, why, state="champion", weight=1.0, verb="promote")
    _begin_anew(connection, seen, why)
    return gone


def _begin_anew(connection: Connection, seen: PolicyVersion, why: Act) -> None:
    """Another champion: what is known of the other candidates compares them with the one before."""
    for other in _others(connection, seen):
        if other.state in LIVE_STATES:
            reason = f"compared with another champion from here on: {why.reason}"[:MAX_REASON]
            _change(connection, other, replace(why, reason=reason), state="shadow", verb="shadow")


def _pause(connection: Connection, seen: PolicyVersion, act: Act, _settings: RolloutSettings) -> PolicyVersion:
    return _change(connection, seen, act, state="paused", former=seen.state)


def _retire(connection: Connection, seen: PolicyVersion, act: Act, _settings: RolloutSettings) -> PolicyVersion:
    return _change(connection, seen, act, state="retired")


_Change = Callable[[Connection, PolicyVersion, Act, RolloutSettings], PolicyVersion]
#: what can be done to a version -> the states that it can be done in, and what does it
TRANSITIONS: Final[Mapping[Verb, tuple[tuple[VersionState, ...], _Change]]] = MappingProxyType(
    {
        "shadow": (("draft", "canary", "rolled_back"), _shadow),
        "canary": (("shadow", "canary"), _canary),
        "step": (("shadow", "canary"), _step),
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
    return [one for one in store.versions_of(connection, base=seen.base) if one.name != seen.name]


def _check_canary(connection: Connection, seen: PolicyVersion) -> None:
    there = next((one for one in _others(connection, seen) if one.state == "canary"), None)
    if there is not None:
        remedy = f"wait for it, or: ragbandit policy shadow {there.name}"
        raise Conflict(f"{there.name!r} is in canary, and there is one at a time", field="state", remedy=remedy)


def _lock(connection: Connection, *, base: PolicyLabel) -> None:
    """Until this transaction ends nobody else changes versions of this configuration: what was read stays true."""
    connection.execute(select(policy_control.c.base).where(policy_control.c.base == base).with_for_update())


def _label(name: str, *, base: PolicyLabel) -> PolicyLabel:
    label = f"{base}.{name}"
    if not _NAME.fullmatch(name) or len(label) > _MAX_LABEL:
        remedy = f"use 1 to {min(20, _MAX_LABEL - len(base) - 1)} small letters, digits and underscores"
        raise InvalidInput(f"{name!r} is no name of a version", field="name", remedy=remedy)
    return PolicyLabel(label)


def _check_changes(changes: Mapping[str, Json]) -> None:
    for section, values in changes.items():
        if section not in SECTIONS or not isinstance(values, Mapping):
            remedy = f"a version changes {', '.join(SECTIONS)}, each a mapping of settings"
            raise InvalidInput(f"{section!r} cannot be changed by a version", field="changes", remedy=remedy)
        if (field := credentials_in(values, field=section)) is not None:
            raise InvalidInput(
                "an address with a user, a password or a key in it, and versions are stored as they are given",
                field=field,
                remedy="send it as a header (headers_env of the arm http); or put the arm into the configuration, with "
                "this param in the environment",
            )
    if len(canonical(dict(changes))) > MAX_CHANGES:
        raise InvalidInput(f"more than {MAX_CHANGES:,} characters as JSON", field="changes", remedy="send less")


def _check_arms(changes: Mapping[str, Json], versions: Sequence[PolicyVersion]) -> None:
    """An arm's name means one thing: workers, ledgers and totals know arms by their names."""
    for other in versions:
        there, ours = other.changes.get("arms"), changes.get("arms")
        if not isinstance(there, Mapping) or not isinstance(ours, Mapping):
            continue
        for arm in ours:
            if arm in there and (ours[arm] or {}) != (there[arm] or {}):
                message = f"the version {other.name!r} offers an arm of this name with other params"
                raise Conflict(message, field=f"arms.{arm}", remedy="give the new arm a name of its own")


def check_reason(reason: str) -> None:
    """Refuse an empty reason, and one that is too long. Raises InvalidInput."""
    if not reason.strip() or len(reason) > MAX_REASON:
        remedy = f"say why, in 1 to {MAX_REASON} characters"
        raise InvalidInput(f"{len(reason)} characters", field="reason", remedy=remedy)


def _told(version: PolicyVersion) -> str:
    return f"in canary at {version.weight:.0%}" if version.state == "canary" else version.state.replace("_", " ")
