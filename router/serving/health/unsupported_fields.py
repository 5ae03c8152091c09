"""Unsupported fields: parameters that a generator's server does not support, so that they are not sent again and again.

A server's refusal counts if two callers received it within a day: a single caller could otherwise take a parameter from
all others. Then the parameter is left out for a day, and `ragbandit.ignored` of each reply names it. The audit log has
the entries, so that other processes read them.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import select

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.rows.conversion import body_hash, object_or_empty
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import audit_log

log = logging.getLogger("ragbandit.health")

#: time for which a parameter is left out, and in which two callers must have received the refusal, seconds
REMEMBERED_S: Final = 86_400.0
_ACTION: Final = "generator.unsupported"
_KIND: Final = "generator:"
#: maximum number of remembered parameters per generator, on average
_MOST: Final = 64
_LONGEST: Final = 64  #: longest name of a parameter, characters

#: (tenant, API key)
Caller = tuple[str, str | None]


class UnsupportedFields:
    """The parameters by generator. Thread-safe. generators: name of a generator -> its settings"""

    def __init__(self, database: Database, *, generators: Mapping[str, GeneratorSettings]) -> None:
        self._database, self._lock = database, threading.Lock()
        self._settings = {name: body_hash(repr(generator.model_dump())) for name, generator in generators.items()}
        #: (generator, field) -> the time until which it is left out
        self._until: dict[tuple[str, str], float] = {}
        #: (generator, field) -> caller -> the last time at which the caller received the refusal
        self._heard: dict[tuple[str, str], dict[Caller, float]] = {}
        #: entries that are not written yet
        self._unwritten: list[tuple[str, str]] = []
        self._number = 0

    def of(self, generator: str, *, now: float) -> frozenset[str]:
        """The parameters that this generator's requests leave out."""
        known = self._until.items()
        return frozenset(field for (name, field), until in list(known) if name == generator and until > now)

    def note(self, generator: str, fields: Iterable[str], *, caller: Caller, now: float) -> None:
        """Note that a server does not support these parameters, according to its reply to this caller."""
        for field in fields:
            key = generator, field
            if generator not in self._settings or not (field.isidentifier() and len(field) <= _LONGEST):
                continue
            with self._lock:
                if key not in self._heard and len(self._heard) >= _MOST * len(self._settings):
                    del self._heard[next(iter(self._heard))]
                callers = self._heard.setdefault(key, {})
                callers.pop(caller, None)
                callers[caller] = now
                recent = [one for one, at in callers.items() if at > now - REMEMBERED_S][-2:]
                self._heard[key] = {one: callers[one] for one in recent}
                if len(recent) > 1 and self._until.get(key, 0.0) <= now:
                    self._until[key] = now + REMEMBERED_S
                    self._unwritten.append(key)

    def exchange(self, *, now: float) -> None:
        """Write new entries to the audit log, and read those of other processes. Raises StoreError."""
        with self._lock:
            unwritten, self._unwritten = self._unwritten, []
        for position, (generator, field) in enumerate(unwritten):
            facts = {"field": field, "settings": self._settings[generator], "until": self._until[generator, field]}
            try:
                with self._database.write() as connection:
                    record(connection, actor="service", action=_ACTION, target=_KIND + generator, facts=facts, now=now)
            except BaseException:
                with self._lock:
                    self._unwritten = [*unwritten[position:], *self._unwritten]
                raise
            log.warning(
                "a server does not support a parameter: it is left out", extra={"generator": generator, **facts}
            )
        self.read(now=now)

    def read(self, *, now: float) -> dict[tuple[str, str], float]:
        """Read new entries. Returns (generator, parameter) -> time until which it is left out. Raises StoreError."""
        query = select(*audit_log.c["number", "target", "facts"]).where(audit_log.c.number > self._number)
        query = query.where(audit_log.c.action == _ACTION, audit_log.c.made_at > now - REMEMBERED_S)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(audit_log.c.number)).all()
        for row in rows:
            facts, generator, self._number = object_or_empty(row.facts), row.target.removeprefix(_KIND), row.number
            field, until = facts.get("field"), facts.get("until")
            is_same = generator in self._settings and facts.get("settings") == self._settings[generator]
            if is_same and isinstance(field, str) and isinstance(until, int | float):
                self._until[generator, field] = max(until, self._until.get((generator, field), 0.0))
        return {key: until for key, until in self._until.items() if until > now}
