"""Gone models: retires arms whose model's server no longer has the model.

Status 410, the server's error code, or an error text with the model's name retires an arm at once. Other error texts
may repeat what a caller wrote, so they retire an arm only if callers agree (`callers_agree`). The arm is not offered
until its settings change, or a change of it is declared. The audit log contains the retirements.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Row, and_, select

from ragbandit.router.config.named_sections import DEFAULT
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.learning.monitoring.arm_changes import CHANGE, KIND
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.rows.conversion import body_hash
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import audit_log, decisions
from ragbandit.shared.model_servers.failures import Failure, failure_of
from ragbandit.shared.types import ArmName, Json

log = logging.getLogger("ragbandit.health")

_ACTION: Final = "arm.gone"
_SETTINGS: Final = "settings"
#: maximum number of remembered signs of an arm; the oldest is dropped first
_MOST: Final = 100
#: tenant, API key and hash of a request whose error text may say that the model is gone
Sign = tuple[str, str | None, str]
#: period before now, seconds, in which `callers_agree` looks for other callers
_RECENT_S: Final = 3600.0


class GoneModels:
    def __init__(
        self, database: Database, *, arms: Mapping[str, Mapping[str, Json]], generators: Mapping[str, GeneratorSettings]
    ) -> None:
        self._database = database
        #: arm -> (its model, hash of its settings)
        self._known: dict[ArmName, tuple[str, str]] = {}
        for name, params in arms.items():
            generator = generators.get(str(params.get("generator", DEFAULT)))
            if generator is not None and params.get("class", name) != "http":
                self._known[ArmName(name)] = generator.model, body_hash(repr((dict(params), generator.model_dump())))
        #: retired arm -> {"model", "status", "settings": hash of the arm's settings}
        self.retired: dict[ArmName, Mapping[str, Any]] = {}
        #: arm -> the failures since its last success that may mean that its model is gone
        self._signs: dict[ArmName, dict[Sign, Failure]] = {}
        self._began = float("inf")
        self._number = 0  #: number of the newest entry that was read

    def read(self) -> None:
        """Read the new entries of the audit log: retirements, and changes, which end them. Raises StoreError."""
        query = select(*audit_log.c["number", "action", "target", "facts"]).where(audit_log.c.number > self._number)
        query = query.where(audit_log.c.action.in_([_ACTION, CHANGE])).order_by(audit_log.c.number)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        for row in rows:
            arm, facts, self._number = ArmName(row.target.removeprefix(KIND)), object_or_empty(row.facts), row.number
            self.retired.pop(arm, None)
            if row.action == _ACTION and arm in self._known and facts.get(_SETTINGS) == self._known[arm][1]:
                self.retired[arm] = facts

    def note(self, rows: Sequence[Row[Any]], *, now: float) -> None:
        """Retire arms whose model the new outcomes, newest first, show to be gone. Raises StoreError."""
        self._began = min(self._began, now)
        changed: set[ArmName] = set()
        for row in reversed(rows):
            arm, made_by = ArmName(row.arm), object_or_empty(row.made_by)
            failure = failure_of(made_by)
            if row.status != "failed":
                self._signs.pop(arm, None)
            elif failure is not None and failure.gone and arm in self._known and arm not in self.retired:
                if made_by.get("generator") != self._known[arm][0] or row.decided_at < self._began:
                    continue  # an earlier configuration of the arm
                signs = self._signs.setdefault(arm, {})
                signs[row.tenant, row.api_key, row.body_hash] = failure
                if len(signs) > _MOST:
                    del signs[next(iter(signs))]
                changed.add(arm)
        for arm in sorted(changed & self._signs.keys()):
            signs = self._signs[arm]
            named = [failure for failure in signs.values() if failure.gone == "named"]
            if named or callers_agree(signs, database=self._database, now=now):
                self._retire(arm, status=(named or list(signs.values()))[-1].status, now=now)

    def _retire(self, arm: ArmName, *, status: int | None, now: float) -> None:
        model, settings = self._known[arm]
        facts: dict[str, Json] = {"model": model, "status": status, _SETTINGS: settings}
        with self._database.write() as connection:
            record(connection, actor="service", action=_ACTION, target=KIND + arm, facts=facts, now=now)
        log.error("the model of an arm is gone: the arm is not offered", extra={"arm": arm, **facts})
        self.read()


def callers_agree(signs: Collection[Sign], *, database: Database, now: float) -> bool:
    """Whether two or more callers received a sign that the model is gone. Callers are tenants; if only one tenant asked
    in the last hour, its API keys; if only one key asked, its requests. signs: at least one. Raises StoreError.
    """
    with database.read() as connection:
        for column, values in zip((decisions.c.tenant, decisions.c.api_key), zip(*signs, strict=True), strict=False):
            if len(set(values)) > 1:
                return True
            is_other = and_(decisions.c.made_at > now - _RECENT_S, column.is_distinct_from(values[0]))
            if connection.execute(select(decisions.c.id).where(is_other).limit(1)).first() is not None:
                return False
    return len(set(signs)) > 1
