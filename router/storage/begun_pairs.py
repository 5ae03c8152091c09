"""Questions of paired comparisons (`report --decide`) that were begun and have not ended: jobs of the kind `pair`.

A run inserts the job in the transaction that books the question's estimate, and deletes it when both arms have answered
and both answers are scored, or wait for a person's label. A job that waits has an answer that was paid and is not
scored, with the passages that the judge reads. The job of a process that died has the estimate that nobody has settled,
and counts the deaths. One process at a time asks (the lease `decide`), so a claimed job that a new run finds belongs to
a process that died.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, delete, select

from ragbandit.router.storage.access.reservations import Reservation, settle
from ragbandit.router.storage.access.spending import Spender
from ragbandit.router.storage.paired_answers import answer_dollars, is_erased
from ragbandit.router.storage.rows.conversion import canonical, from_json
from ragbandit.router.storage.sql.bulk_insert import put_rows
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.processes.this_process import this_process
from ragbandit.shared.types import ArmName, DecisionId, Source

_IS_PAIR: Final = jobs.c.kind == "pair"
#: number of ids per statement
_BATCH: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class BegunPair:
    """A question of a paired comparison that was begun and has not ended."""

    decision_id: DecisionId
    #: number of processes that died while they asked the question
    deaths: int = 0
    #: estimate of the question's cost; None if no process asks the question
    reservation: Reservation | None = None
    #: dollars of answers that were stored before the reservation
    paid_before: float = 0.0
    #: highest expected dollars of one call, which a process may have paid when it died
    call: float = 0.0
    #: arm -> passages of its answer, if the answer is stored and not scored
    sources: Mapping[ArmName, Sequence[Source]] = field(default_factory=dict)
    #: arm -> how often the judge failed on its answer
    failures: Mapping[ArmName, int] = field(default_factory=dict)

    @property
    def has_history(self) -> bool:
        """Whether the question must stay stored for a later run: a process died, or an answer has no score yet."""
        return bool(self.deaths or self.sources or self.failures)


def store_begun(connection: Connection, *, pair: BegunPair) -> None:
    """Store a question, or delete it if it has ended. A question with a reservation is being asked: it is stored as
    claimed by this process, with one more death until it ends. Sources of an erased question are not stored.
    """
    if pair.sources and is_erased(connection, pair.decision_id) is not False:
        pair = replace(pair, sources={})
    if pair.reservation is None and not pair.has_history:
        connection.execute(delete(jobs).where(_IS_PAIR, jobs.c.decision_id == pair.decision_id))
        return
    is_asked = pair.reservation is not None
    row: dict[str, Any] = {
        "kind": "pair",
        "decision_id": pair.decision_id,
        "turn": 0,
        "made_at": 0.0 if pair.reservation is None else pair.reservation.at,
        "due_at": 0.0,
        "tries": pair.deaths + is_asked,
        "claimed_by": this_process().key if is_asked else None,
        "facts": canonical(_facts(pair)),
    }
    put_rows(connection, jobs, [row])


def _facts(pair: BegunPair) -> dict[str, Any]:
    facts: dict[str, Any] = {"failures": dict(pair.failures)}
    facts["sources"] = {arm: [asdict(source) for source in sources] for arm, sources in pair.sources.items()}
    if pair.reservation is not None:
        reservation = pair.reservation
        names = [[spender.kind, spender.name] for spender in reservation.spenders]
        facts["booked"] = {"spenders": names, "dollars": reservation.dollars, "at": reservation.at}
        facts["booked"] |= {"paid_before": pair.paid_before, "call": pair.call}
    return facts


def begun_pairs(database: Database, *, ids: Collection[DecisionId]) -> dict[DecisionId, BegunPair]:
    """The questions in `ids` that have begun. Raises StoreError."""
    known = sorted(ids)
    begun: dict[DecisionId, BegunPair] = {}
    with database.read() as connection:
        for start in range(0, len(known), _BATCH):
            pairs = _pairs(connection, jobs.c.decision_id.in_(known[start : start + _BATCH]))
            begun |= {pair.decision_id: pair for pair in pairs}
    return begun


def settle_lost(database: Database) -> None:
    """Replace the estimates of questions whose processes died by the dollars of their stored answers and of one call,
    which may have been under way. Call this only with the lease `decide`. Raises StoreError.
    """
    with database.read() as connection:
        lost = _pairs(connection, jobs.c.claimed_by.is_not(None))
        paid = answer_dollars(connection, [pair.decision_id for pair in lost])
    for pair in lost:
        assert pair.reservation is not None
        stored = max(0.0, paid.get(pair.decision_id, 0.0) - pair.paid_before)
        dollars = max(stored, min(stored + pair.call, pair.reservation.dollars))
        note = partial(store_begun, pair=replace(pair, reservation=None))
        settle(database, pair.reservation, dollars=dollars, note=note)


def _pairs(connection: Connection, *where: ColumnElement[bool]) -> list[BegunPair]:
    return [_pair(row) for row in connection.execute(select(jobs).where(_IS_PAIR, *where)).mappings()]


def _pair(row: RowMapping) -> BegunPair:
    facts: dict[str, Any] = json.loads(row["facts"])
    sources = {
        ArmName(arm): tuple(from_json(Source, each) for each in listed) for arm, listed in facts["sources"].items()
    }
    booked, reservation = facts.get("booked", {}), None
    if booked:
        spenders = tuple(Spender(kind, name) for kind, name in booked["spenders"])
        reservation = Reservation(spenders=spenders, dollars=booked["dollars"], at=booked["at"])
    return BegunPair(
        decision_id=DecisionId(row["decision_id"]),
        deaths=row["tries"],
        reservation=reservation,
        paid_before=booked.get("paid_before", 0.0),
        call=booked.get("call", 0.0),
        sources=sources,
        failures=facts["failures"],
    )


def forget_pairs(connection: Connection, ids: Iterable[str]) -> None:
    """Delete the jobs of these questions, which are deleted or erased."""
    connection.execute(delete(jobs).where(_IS_PAIR, jobs.c.decision_id.in_(sorted(ids))))
