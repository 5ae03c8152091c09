"""Requests for paired comparisons from HTTP and the dashboard: a learner plans or asks, as `report --decide` does.

A ledger has one request at a time, with its state, in `reading_positions`. If a worker ends, the next worker
continues the open request.
"""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ragbandit.router.storage.rows.conversion import from_json
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.positions import lock_position, move_position, position_of
from ragbandit.shared.errors import Conflict
from ragbandit.shared.texts.formats import duration
from ragbandit.shared.types import Json

State = Literal["none", "waiting", "running", "planned", "ended", "refused"]
#: a request ends after this number of seconds without news: before a learner has begun it, and afterwards
BEGIN_S: Final = 600.0
GO_ON_S: Final = 3600.0
#: least number of seconds between two notes that a learner waits
_NOTE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictRequest:
    state: State = "none"
    since: float = 0.0
    until: float = 0.0
    tenant: str | None = None
    against: str | None = None
    judge: str | None = None
    #: largest cost of the request in dollars; None to plan only
    budget: float | None = None
    #: who made the request, as in the audit log
    actor: str = ""
    #: name on which the dollars are booked: the API key, if one asked; "" for `actor`
    charged: str = ""
    #: the plan in words: steps, dollars, and how sure the result will be
    plan: tuple[str, ...] = ()
    asked: int = 0
    dollars: float = 0.0
    #: why the request ended or was refused
    ended: str | None = None
    made_at: float | None = None
    #: time of the last change
    changed_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self.state in ("waiting", "running")

    @property
    def terms(self) -> Mapping[str, Json]:
        """Fields that are equal in a repeated request."""
        names = ("since", "until", "tenant", "against", "judge", "budget", "actor")
        return {name: getattr(self, name) for name in names}


def newest_request(connection: Connection, *, label: str, now: float | None = None) -> VerdictRequest:
    """The newest request of a ledger. now: seconds since 1970; None for the present time"""
    stored: dict[str, Any] = position_of(connection, _reader(label))
    request = from_json(VerdictRequest, stored | {"plan": tuple(stored.get("plan", ()))})
    return _ended_without_news(request, now=time.time() if now is None else now)


def _ended_without_news(request: VerdictRequest, *, now: float) -> VerdictRequest:
    """The request, ended if it had no news for too long: nobody waits for ever, and no late learner spends dollars."""
    limit = BEGIN_S if request.state == "waiting" else GO_ON_S
    if not request.is_open or (request.changed_at or 0.0) >= now - limit:
        return request
    what = "began it" if request.state == "waiting" else "went on with it"
    why = f"no learner {what} within {duration(limit)}: start one (`ragbandit worker --queue learn`), then ask again"
    return dataclasses.replace(request, state="ended", ended=why)


def keep_request(database: Database, request: VerdictRequest, *, label: str) -> VerdictRequest:
    """Store the state of a request. Raises StoreError."""
    changed = dataclasses.replace(request, changed_at=time.time())
    with database.write() as connection:
        _keep(connection, changed, label=label)
    return changed


def note_wait(database: Database, *, label: str) -> None:
    """Note that a learner waits to begin the request, because another process asks questions now. Raises StoreError."""
    now = time.time()
    with database.write() as connection:
        lock_position(connection, _reader(label), now=now)
        request = newest_request(connection, label=label, now=now)
        if request.state == "waiting" and (request.changed_at or 0.0) < now - _NOTE_S:
            _keep(connection, dataclasses.replace(request, changed_at=now), label=label)


def make_request(database: Database, request: VerdictRequest, *, label: str) -> VerdictRequest:
    """Store a request for the learner. A repeated request returns the open request. Raises Conflict, StoreError."""
    now = time.time()
    with database.write() as connection:
        lock_position(connection, _reader(label), now=now)
        before = newest_request(connection, label=label)
        if before.is_open:
            if before.terms == request.terms:
                return before
            remedy = "wait until it has ended: GET /v1/report/decide"
            raise Conflict(f"{before.actor} asks questions of this store", field="budget", remedy=remedy)
        made = dataclasses.replace(request, state="waiting", made_at=now, changed_at=now)
        _keep(connection, made, label=label)
    return made


def _keep(connection: Connection, request: VerdictRequest, *, label: str) -> None:
    now = request.changed_at or time.time()
    move_position(connection, _reader(label), position=dataclasses.asdict(request), now=now)


def _reader(label: str) -> str:
    return f"decide request:{label}"
