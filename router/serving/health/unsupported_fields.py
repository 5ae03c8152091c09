"""Unsupported fields: parameters that a generator's server does not support, so that they are not sent again and again.

A server's refusal counts if callers agree (`agree`): a single caller could otherwise take a parameter from all others.
Then the parameter is left out for a day, and `ragbandit.ignored` of each reply names it. The audit log has the entries,
so that other processes read them.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.serving.health.agreement import Sign, agree
from ragbandit.router.serving.health.refusal_log import RefusalLog
from ragbandit.router.storage.rows.conversion import body_hash
from ragbandit.router.storage.sql.database import Database

log = logging.getLogger("ragbandit.health")

#: time for which a parameter is left out, and for which a refusal is remembered, seconds
REMEMBERED_S: Final = 86_400.0
_ACTION: Final = "generator.unsupported"
_KIND: Final = "generator:"
#: maximum number of parameters that are left out per generator, and of parameters with refusals per generator
MOST: Final = 64
_LONGEST: Final = 128  #: longest name of a parameter, with its place if it is inside another one, characters
#: maximum number of remembered refusals of a parameter; the oldest is dropped first
_MOST_SIGNS: Final = 16


class UnsupportedFields:
    """The parameters by generator. Thread-safe. generators: name of a generator -> its settings"""

    def __init__(self, database: Database, *, generators: Mapping[str, GeneratorSettings]) -> None:
        self._database, self._lock = database, threading.Lock()
        self._settings = {name: body_hash(repr(generator.model_dump())) for name, generator in generators.items()}
        #: generator -> field -> the time until which it is left out
        self._until: dict[str, dict[str, float]] = {name: {} for name in generators}
        #: generator -> field -> who received a refusal -> the last time
        self._signs: dict[str, dict[str, dict[Sign, float]]] = {name: {} for name in generators}
        #: (generator, field) of each refusal since the last exchange
        self._changed: dict[tuple[str, str], None] = {}
        self._log = RefusalLog(database, action=_ACTION, prefix=_KIND, settings=self._settings)

    def of(self, generator: str, *, now: float) -> frozenset[str]:
        """The parameters that this generator's requests leave out."""
        with self._lock:
            return frozenset(field for field, until in self._until.get(generator, {}).items() if until > now)

    def note(self, generator: str, fields: Iterable[str], *, sign: Sign, now: float) -> None:
        """Note that a server does not support these parameters, according to its reply to this caller. The next
        `exchange` decides about them.
        """
        for field in fields if generator in self._settings else ():
            if not (len(field) <= _LONGEST and all(map(str.isidentifier, field.split(".")))):
                continue
            with self._lock:
                known = self._signs[generator]
                if field not in known and len(known) >= MOST:
                    del known[next(iter(known))]
                signs = {one: at for one, at in known.get(field, {}).items() if one != sign and at > now - REMEMBERED_S}
                known[field] = dict([*signs.items(), (sign, now)][-_MOST_SIGNS:])
                self._changed[generator, field] = None

    def exchange(self, *, now: float) -> None:
        """Write to the audit log what callers agree about, and read what other processes wrote. Raises StoreError."""
        with self._lock:
            changed, self._changed = list(self._changed), {}
        for position, (generator, field) in enumerate(changed):
            try:
                self._decide(generator, field, now=now)
            except BaseException:
                with self._lock:
                    self._changed = dict.fromkeys([*changed[position:], *self._changed])
                raise
        self.read(now=now)

    def _decide(self, generator: str, field: str, *, now: float) -> None:
        with self._lock:
            signs = [one for one, at in self._signs[generator].get(field, {}).items() if at > now - REMEMBERED_S]
        if not signs or field in self.of(generator, now=now) or not agree(signs, database=self._database, now=now):
            return
        facts = self._log.write(generator, facts={"field": field, "until": now + REMEMBERED_S}, now=now)
        self._leave_out(generator, field, until=now + REMEMBERED_S, now=now)
        log.warning("a server does not support a parameter: it is left out", extra={"generator": generator, **facts})

    def read(self, *, now: float) -> dict[tuple[str, str], float]:
        """Read new entries. Returns (generator, parameter) -> time until which it is left out. Raises StoreError."""
        for generator, facts in self._log.read_new(since=now - REMEMBERED_S):
            field, until = (None, None) if facts is None else (facts.get("field"), facts.get("until"))
            if isinstance(field, str) and isinstance(until, int | float):
                self._leave_out(generator, field, until=until, now=now)
        with self._lock:
            left_out = ((name, field, until) for name, fields in self._until.items() for field, until in fields.items())
            return {(name, field): until for name, field, until in left_out if until > now}

    def _leave_out(self, generator: str, field: str, *, until: float, now: float) -> None:
        """Leave a parameter out, for at most a day. Those whose time is over are forgotten; beyond MOST, those that end
        first.
        """
        with self._lock:
            ends = self._until[generator]
            ends = ends | {field: max(min(until, now + REMEMBERED_S), ends.get(field, 0.0))}
            newest = sorted(((end, name) for name, end in ends.items() if end > now), reverse=True)[:MOST]
            self._until[generator] = {name: end for end, name in newest}
