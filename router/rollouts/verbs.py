"""Actions of people that change the state of a version.

    draft -> shadow -> champion -> retired

A version can be retired from draft and shadow too. Rolling back the champion retires it, and the previous champion
decides again. Every action is one transaction that locks the row of the kill switch, so versions of a configuration
are changed one at a time.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from sqlalchemy import select

from ragbandit.router.config.grids import expand_grids
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts.evidence import Evidence, evidence_on
from ragbandit.router.rollouts.version_settings import SECTIONS
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policy_versions
from ragbandit.shared.errors import Conflict, InvalidInput
from ragbandit.shared.texts.redaction import credentials_in
from ragbandit.shared.types import ArmName, Json, PolicyControl, PolicyLabel, PolicyVersion, VersionState

Verb = Literal["shadow", "promote", "rollback", "retire"]

#: maximum number of versions that are not retired, besides the configuration itself
MAX_OPEN: Final = 100
MAX_REASON: Final = 500
MAX_CHANGES: Final = 100_000
_NAME: Final = re.compile(r"[a-z0-9_]{1,20}")
_MAX_LABEL: Final = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    verb: Verb
    name: str
    base: PolicyLabel
    actor: str  #: "key:PUBLIC_ID" or "cli:USER@HOST"
    reason: str
    now: float
    #: whether "promote" may contradict the evidence; if so, the stored reason and the audit log contain "forced"
    force: bool = False
    #: the action is refused if the version no longer has this revision; None accepts every revision
    revision: int | None = None


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
        changes = {**changes, "arms": expand_grids(arms)}
    check_reason(reason)
    with database.write() as connection:
        store.lock_versions(connection, base=base)
        versions = store.versions_of(connection, base=base)
        if len([version for version in versions if version.state != "retired"]) > MAX_OPEN:
            message = f"more than {MAX_OPEN} versions are not retired"
            raise Conflict(message, field="name", remedy="retire some: `ragbandit policy retire NAME`")
        _check_arms(changes, versions)
        if name is None:  # names are unique in the store, also across configurations
            names = set(connection.execute(select(policy_versions.c.name)).scalars())
            name = next(f"v{n}" for n in range(1, len(names) + 2) if f"v{n}" not in names)
        version = PolicyVersion(
            name=name,
            base=base,
            label=_label(name, base=base),
            state="draft",
            former=None,
            changes=dict(changes),
            revision=1,
            reason=reason,
            made_by=actor,
            made_at=now,
            since=now,
        )
        return store.add_version(connection, version)


def perform(database: Database, act: Act, *, settings: RolloutSettings) -> PolicyVersion:
    """Carry out an action. Raises NotFound, InvalidInput, or Conflict if the state or the evidence forbids it."""
    check_reason(act.reason)
    evidence = None
    if act.verb == "promote" and not act.force:
        with database.read() as connection:
            version = store.version_named(connection, act.name, base=act.base)
        evidence = evidence_on(database, version, now=act.now)
        if act.revision is None:  # the evidence was computed for this revision
            act = replace(act, revision=version.revision)
    with database.write() as connection:
        store.lock_versions(connection, base=act.base)
        version = store.version_named(connection, act.name, base=act.base)
        if act.revision is not None and act.revision != version.revision:
            message = f"the version {version.name!r} was changed meanwhile: its state is {version.state} now"
            remedy = f"look at it again, then decide: `ragbandit policy show {version.name}`"
            raise Conflict(message, field="revision", remedy=remedy)
        states, change = TRANSITIONS[act.verb]
        if version.state not in states:
            possible = ", ".join(verbs_of(version)) or "nothing; add a new version"
            message = f"{act.verb} is not possible while the state of {version.name!r} is {version.state}"
            raise Conflict(message, field="state", remedy=f"possible now: {possible}")
        return change(_Move(connection=connection, version=version, act=act, settings=settings, evidence=evidence))


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
        store.lock_versions(connection, base=base)
        return store.set_switch(connection, base=base, killed=killed, arm=pinned, actor=actor, reason=reason, now=now)


def unkill(database: Database, *, base: PolicyLabel, actor: str, reason: str, now: float) -> PolicyControl:
    check_reason(reason)
    with database.write() as connection:
        store.lock_versions(connection, base=base)
        if store.control_of(connection, base=base).killed is None:
            remedy = "see: `ragbandit policy show`, or GET /v1/policies"
            raise Conflict("the kill switch is off", field="killed", remedy=remedy)
        return store.set_switch(connection, base=base, killed=None, arm=None, actor=actor, reason=reason, now=now)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Move:
    """A change of a version's state, in a transaction that has locked the versions."""

    connection: Connection
    version: PolicyVersion
    act: Act
    settings: RolloutSettings
    evidence: Evidence | None  #: evidence for a promotion; None if it is forced, and for other actions

    def shadow(self) -> PolicyVersion:
        others = [version.name for version in self._others("shadow")]
        if len(others) >= self.settings.shadows:
            message = f"{len(others)} versions are in shadow already: {', '.join(others)}"
            raise Conflict(message, field="state", remedy="retire one of them")
        return self._change(self.version, self.act, state="shadow")

    def promote(self) -> PolicyVersion:
        name, act, facts = self.version.name, self.act, self._proof()
        cause = replace(act, reason=f"{name} was promoted")
        for version in self._others("champion"):
            self._change(version, replace(cause, verb="retire"), state="retired", former="champion")
        self._restart_shadows(cause)
        if act.force:
            act = replace(act, reason=f"forced: {act.reason}")
        return self._change(self.version, act, state="champion", facts=facts)

    def _proof(self) -> dict[str, Json]:
        """The evidence as the audit log stores it. Raises Conflict if the version is not better."""
        if self.act.force:
            return {"forced": True}
        evidence = self.evidence
        if evidence is None or evidence.comparison.verdict != "better":
            sentence = "it was not in shadow" if evidence is None else evidence.sentence
            message = f"the evidence does not show that {self.version.name!r} is better: {sentence}"
            remedy = 'wait, or promote it against the evidence: --force, over HTTP "force": true'
            raise Conflict(message, field="force", remedy=remedy)
        return {"comparison": asdict(evidence.comparison)}

    def rollback(self) -> PolicyVersion:
        version = self.version
        previous = store.previous_champion(store.versions_of(self.connection, base=version.base))
        if previous is None:
            message = f"{version.name!r} is the first champion, so there is no previous one"
            raise Conflict(message, field="state", remedy="pin an arm: `ragbandit policy kill ARM`")
        cause = replace(self.act, reason=f"{version.name} was rolled back: {self.act.reason}"[:MAX_REASON])
        self._change(previous, replace(cause, verb="promote"), state="champion")
        self._restart_shadows(cause)
        return self.retire()

    def retire(self) -> PolicyVersion:
        return self._change(self.version, self.act, state="retired")

    def _restart_shadows(self, cause: Act) -> None:
        """Restart the evidence on all other versions in shadow, since it compares them with the former champion."""
        reason = f"compared with another champion from here on: {cause.reason}"[:MAX_REASON]
        for version in self._others("shadow"):
            self._change(version, replace(cause, verb="shadow", reason=reason), state="shadow")

    def _others(self, state: VersionState) -> list[PolicyVersion]:
        versions = store.versions_of(self.connection, base=self.version.base)
        return [version for version in versions if version.state == state and version.name != self.version.name]

    def _change(self, version: PolicyVersion, act: Act, **values: Any) -> PolicyVersion:
        entry: dict[str, Any] = {"action": f"policy.{act.verb}", "actor": act.actor, "now": act.now}
        return store.change_version(self.connection, version, reason=act.reason, **entry, **values)


#: action -> (states in which the action is allowed, method that carries it out)
TRANSITIONS: Final[Mapping[Verb, tuple[tuple[VersionState, ...], Callable[[_Move], PolicyVersion]]]] = MappingProxyType(
    {
        "shadow": (("draft",), _Move.shadow),
        "promote": (("shadow",), _Move.promote),
        "rollback": (("champion",), _Move.rollback),
        "retire": (("draft", "shadow"), _Move.retire),
    }
)


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
