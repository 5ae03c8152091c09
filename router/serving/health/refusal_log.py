"""Refusal log: what servers refuse, as entries of the audit log, so that all processes of a store know it."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import select

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.shared.types import Json

_SETTINGS: Final = "settings"


class RefusalLog:
    """Entries of one kind. An entry counts while what it is about, an arm or a generator, has the same settings."""

    def __init__(
        self,
        database: Database,
        *,
        action: str,
        prefix: str,
        settings: Mapping[str, str],
        ended_by: str | None = None,
    ) -> None:
        """action, prefix: of the entries in the audit log; a target is `prefix` and a name.

        settings: name -> hash of its settings now. ended_by: action of entries that end earlier ones of their target
        """
        self._database, self._action, self._prefix, self._settings = database, action, prefix, settings
        self._actions = [action] if ended_by is None else [action, ended_by]
        self._number = 0

    def write(self, name: str, *, facts: Mapping[str, Json], now: float) -> Mapping[str, Json]:
        """Add an entry. Returns what `read_new` gives every process. Raises StoreError."""
        facts = {**facts, _SETTINGS: self._settings[name]}
        with self._database.write() as connection:
            record(connection, actor="service", action=self._action, target=self._prefix + name, facts=facts, now=now)
        return facts

    def read_new(self, *, since: float = 0.0) -> list[tuple[str, Mapping[str, Any] | None]]:
        """(name, facts) of the entries since the last call, the oldest first. Raises StoreError.

        The facts are None if the entry ends earlier ones, or was made with other settings. since: time, seconds since
        1970; older entries are not read
        """
        query = select(*audit_log.c["number", "action", "target", "facts"]).where(audit_log.c.number > self._number)
        query = query.where(audit_log.c.action.in_(self._actions), audit_log.c.made_at > since)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(audit_log.c.number)).all()
        entries = list[tuple[str, Mapping[str, Any] | None]]()
        for row in rows:
            name, facts, self._number = row.target.removeprefix(self._prefix), object_or_empty(row.facts), row.number
            counts = row.action == self._action and name in self._settings
            entries.append((name, facts if counts and facts.get(_SETTINGS) == self._settings[name] else None))
        return entries
