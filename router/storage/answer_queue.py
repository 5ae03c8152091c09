"""Answer queue: decisions that wait for a worker or are run by one.

The transaction that stores a decision inserts the decision's row. The transaction that stores its outcome, or closes
the decision, deletes the row. So no decision is lost or answered twice. Worker processes claim the row with the lowest
turn (leases.Claims).

Tenants take turns, by start-time fair queueing with one unit per decision (Goyal, Vin and Cheng 1997): a new decision
gets the turn that is next in the queue, or the turn after its tenant's last decision if that is later. So a tenant with
a thousand decisions delays the first decision of another tenant by one. Every step reads a few rows of an index.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sqlalchemy import ColumnElement, Connection, case, select, update

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.bulk_insert import insert_rows, run
from ragbandit.router.storage.sql.database import Database, overwrite_freed
from ragbandit.router.storage.sql.leases import CLAIM_S, Claims, now_of
from ragbandit.router.storage.sql.tables import answer_queue
from ragbandit.shared.this_process import ProcessIdentity
from ragbandit.shared.types import ArmName, Decision, DecisionId, Json

_WAITS: Final = answer_queue.c.claimed_by.is_(None)
_ORDER: Final = answer_queue.c.turn, answer_queue.c.queued_at
#: turn of decisions that were moved to the front; other decisions have turns above it
_FRONT: Final = 0
#: query for two turns. upcoming: lowest turn of a waiting decision, else highest turn of a claimed one, else 1. last:
#: highest turn of the given tenant's decisions, else 0
_TURNS: Final = f"""
    SELECT coalesce(
        (SELECT turn FROM answer_queue WHERE claimed_by IS NULL AND turn > {_FRONT} ORDER BY turn LIMIT 1),
        (SELECT max(turn) FROM answer_queue WHERE claimed_by IS NOT NULL),
        1
    ) AS upcoming,
    coalesce((SELECT max(turn) FROM answer_queue WHERE tenant = ?), 0) AS last
"""  # noqa: S608 # a number of ours


def enqueue(
    connection: Connection,
    decisions: Iterable[Decision],
    *,
    in_front: bool = False,
    claims: Mapping[DecisionId, str] = MappingProxyType({}),
) -> None:
    """Insert decisions, in the transaction that stores them.

    in_front: whether workers take these decisions next
    claims: decision id -> key of the process that runs the decision; other decisions wait for a worker
    """
    claimed_until = now_of(connection) + CLAIM_S if claims else None
    by_tenant: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_tenant.setdefault(decision.query.tenant, []).append(decision)
    rows = []
    for tenant, group in by_tenant.items():
        (turns,) = run(connection, _TURNS, tenant)
        first = max(turns["upcoming"], turns["last"] + 1)
        rows += [
            {
                "decision_id": decision.id,
                "tenant": tenant,
                "turn": _FRONT if in_front else turn,
                "arm": decision.arm,
                "queued_at": decision.made_at,
                "tries": int(decision.id in claims),
                "claimed_by": claims.get(decision.id),
                "claimed_until": claimed_until if decision.id in claims else None,
                "chat": canonical(dict(decision.query.chat)) if decision.query.chat else None,
            }
            for turn, decision in enumerate(group, start=first)
        ]
    insert_rows(connection, answer_queue, rows)


def remove(connection: Connection, ids: Collection[str], *, running: bool = True) -> None:
    """Delete rows, in the transaction that stores outcomes or closes decisions. running: delete claimed rows, too."""
    if ids:
        overwrite_freed(connection)  # the column `chat` contains texts of users, which must not stay in free pages
        unclaimed = "" if running else " AND claimed_by IS NULL"
        run(connection, f"DELETE FROM answer_queue WHERE decision_id IN ?{unclaimed}", sorted(ids))  # noqa: S608 # text of ours


def move_to_front(connection: Connection, decision_id: str) -> bool:
    """Let this decision be claimed next. Returns whether the queue has it, waiting or claimed."""
    turn = case((_WAITS, _FRONT), else_=answer_queue.c.turn)
    moved = update(answer_queue).where(answer_queue.c.decision_id == decision_id).values(turn=turn)
    return bool(connection.execute(moved).rowcount)


def waiting_ids(database: Database, *, limit: int) -> list[DecisionId]:
    """Decisions that no process has claimed, in the order of their turns."""
    first = select(answer_queue.c.decision_id).where(_WAITS).order_by(*_ORDER)
    with database.read() as connection:
        return list(connection.execute(first.limit(limit)).scalars())


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedDecision:
    decision_id: DecisionId
    #: number of earlier runs, which all ended without an outcome
    tries: int
    #: the drawn arm
    arm: ArmName
    #: the original chat request, for arms that pass it on; {} for other arms
    chat: Mapping[str, Json]


class AnswerQueue(Claims):
    def __init__(self, database: Database, *, process: ProcessIdentity | None = None) -> None:
        super().__init__(database, answer_queue, order=_ORDER, process=process)

    def claim(
        self,
        *,
        tries: int | None = None,
        without: Collection[ArmName] = (),
        within: Collection[ArmName] | None = None,
        only: DecisionId | None = None,
    ) -> ClaimedDecision | None:
        """Claim the next decision that meets all conditions, and count a try. Returns None if no decision does.

        tries: the decision has fewer tries. without, within: the drawn arm is none, or one, of these arms.
        """
        where: list[ColumnElement[bool]] = []
        if tries is not None:
            where.append(answer_queue.c.tries < tries)
        if within is not None:
            where.append(answer_queue.c.arm.in_(sorted(within)))
        if only is not None:
            where.append(answer_queue.c.decision_id == only)
        if without:
            where.append(answer_queue.c.arm.not_in(sorted(without)))
        if not self.wait(*where):
            return None
        with self._database.write() as connection:
            row = self.take(connection, *where)
        if row is None:
            return None
        chat = {} if row["chat"] is None else json.loads(row["chat"])
        return ClaimedDecision(decision_id=row["decision_id"], tries=row["tries"] - 1, arm=row["arm"], chat=chat)

    def drop(self, decision_id: DecisionId) -> None:
        """Remove a decision that was deleted or already has an outcome."""
        with self._database.write() as connection:
            remove(connection, [decision_id])
