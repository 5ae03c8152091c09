"""Policy versions: their rows, and the kill switch that every router reads.

Callers hold `lock_versions` while they read and change versions. Each change adds an entry to the audit log, and
increments `policy_control.revision`, so that routers notice the change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from sqlalchemy import select, update

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.rows.conversion import JSON_OBJECT, TableRows
from ragbandit.router.storage.sql.bulk_insert import insert_new, run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.tables import policy_control, policy_versions
from ragbandit.shared.errors import Conflict, NotFound
from ragbandit.shared.types import ArmName, Json, PolicyControl, PolicyLabel, PolicyVersion, VersionState

_CONTROLS: Final = TableRows(policy_control, PolicyControl)
# The statement is a constant for speed: every batch of decisions runs it.
_CONTROL: Final = f"SELECT {', '.join(_CONTROLS.names)} FROM policy_control WHERE base = ?"  # noqa: S608 # names of ours
_VERSIONS: Final = TableRows(policy_versions, PolicyVersion, changes=JSON_OBJECT)


def lock_versions(connection: Connection, *, base: PolicyLabel) -> None:
    """Block other changes of this configuration's versions and of its kill switch until the transaction ends."""
    connection.execute(select(policy_control.c.base).where(policy_control.c.base == base).with_for_update())


def control_of(connection: Connection, *, base: PolicyLabel) -> PolicyControl:
    """The kill switch, and the revision: the number of changes of versions and switch. Reads one row by its key."""
    rows = run_statement(connection, _CONTROL, base)
    return _CONTROLS.value(rows[0]) if rows else PolicyControl(revision=0)


def versions_of(connection: Connection, *, base: PolicyLabel) -> list[PolicyVersion]:
    """The configuration's versions, oldest first."""
    query = select(policy_versions).where(policy_versions.c.base == base)
    rows = connection.execute(query.order_by(policy_versions.c.made_at, policy_versions.c.name)).mappings()
    return [_VERSIONS.value(row) for row in rows]


def previous_champion(versions: Sequence[PolicyVersion]) -> PolicyVersion | None:
    """The version that a rollback of the champion makes champion again; None if there is none."""
    former = [version for version in versions if version.former == "champion"]
    return max(former, key=lambda version: version.since, default=None)


def version_named(connection: Connection, name: str, *, base: PolicyLabel) -> PolicyVersion:
    """Raises NotFound if the configuration has no such version."""
    row = connection.execute(select(policy_versions).where(policy_versions.c.name == name)).mappings().first()
    if row is None or row["base"] != base:
        remedy = "see: `ragbandit policy show`, or GET /v1/policies"
        raise NotFound(f"no version of {base!r} is named {name!r}", field="name", remedy=remedy)
    return _VERSIONS.value(row)


def add_version(connection: Connection, version: PolicyVersion) -> PolicyVersion:
    """Add a version in the caller's write transaction. Raises Conflict if the name is taken.

    The first version of a configuration also adds the configuration itself, as champion with the base as its name.
    """
    base, actor = version.base, version.made_by
    now = version.made_at
    champion: dict[str, Any] = {"state": "champion", "former": None, "changes": {}, "revision": 1}
    champion |= {"reason": "defined in config.yaml"}
    configured = replace(version, name=base, label=base, since=now, **champion)
    insert_new(connection, policy_versions, [_VERSIONS.row(configured)], key="name")
    if not any(insert_new(connection, policy_versions, [_VERSIONS.row(version)], key="name")):
        raise Conflict(f"there is a version named {version.name!r} already", field="name", remedy="give another name")
    added = {"changes": dict(version.changes), "state": version.state, "reason": version.reason}
    record(connection, actor=actor, action="policy.add", target=f"policy:{version.name}", facts=added, now=now)
    _bump(connection, base=base, actor=actor, now=now)
    return version


def change_version(
    connection: Connection,
    current: PolicyVersion,
    *,
    action: str,
    actor: str,
    now: float,
    state: VersionState,
    former: VersionState | None = None,
    reason: str,
    facts: Mapping[str, Json] | None = None,
) -> PolicyVersion:
    """Change the version, which was read as `current` under the lock. action, facts: for the audit log."""
    revision = current.revision + 1
    changed = replace(current, state=state, former=former, reason=reason, revision=revision, since=now)
    row = policy_versions.c.name == current.name
    connection.execute(update(policy_versions).where(row).values(**_VERSIONS.row(changed)))
    changes = {"from": current.state, "to": state, "reason": reason, **(facts or {})}
    record(connection, actor=actor, action=action, target=f"policy:{current.name}", facts=changes, now=now)
    _bump(connection, base=current.base, actor=actor, now=now)
    return changed


def set_switch(
    connection: Connection,
    *,
    base: PolicyLabel,
    killed: Literal["arm", "champion"] | None,
    arm: ArmName | None,
    actor: str,
    reason: str,
    now: float,
) -> PolicyControl:
    """Activate the kill switch, or deactivate it with killed=None, from the next decision of every router on."""
    values = {"killed": killed, "arm": arm, "actor": actor, "reason": reason, "made_at": now}
    action = "policy.unkill" if killed is None else "policy.kill"
    change: dict[str, Json] = {"killed": killed, "arm": arm, "reason": reason}
    record(connection, actor=actor, action=action, target=f"policy:{base}", facts=change, now=now)
    _bump(connection, base=base, actor=actor, now=now, values=values)
    return control_of(connection, base=base)


def _bump(
    connection: Connection, *, base: PolicyLabel, actor: str, now: float, values: Mapping[str, Any] | None = None
) -> None:
    first = {"base": base, "revision": 0, "killed": None, "arm": None, "actor": actor, "reason": "", "made_at": now}
    insert_new(connection, policy_control, [first], key="base")
    risen = {"revision": policy_control.c.revision + 1, **(values or {})}
    connection.execute(update(policy_control).where(policy_control.c.base == base).values(**risen))
