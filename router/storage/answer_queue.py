"""Answer queue: the decisions that wait for a worker of ours, and which process runs which.

A row comes in the transaction that stores the decision and leaves in the one that stores its outcome or closes it, so
that none is ever lost or answered by two. A worker process claims the row with the lowest turn (leases.Claims).

Tenants take turns, by start-time fair queueing with one unit a decision (Goyal, Vin and Cheng 1997): a new decision
gets the turn after its tenant's last one, or the turn that is next, whichever is later. So a tenant with a thousand
decisions delays the first one of another by one. Every step reads a few rows of an index, however many wait.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection, case, or_, select, update

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.bulk_insert import insert_rows, run
from ragbandit.router.storage.sql.database import Database, overwrite_freed
from ragbandit.router.storage.sql.leases import CLAIM_S, Claims, now_of
from ragbandit.router.storage.sql.tables import answer_queue
from ragbandit.shared.child_process import ProcessIdentity
from ragbandit.shared.types import ArmName, Decision, DecisionId, Json

_WAITS: Final = answer_queue.c.claimed_by.is_(None)
_ORDER: Final = answer_queue.c.turn, answer_queue.c.queued_at
#: turn of a decision that was moved to the front; it says nothing of how far the others are
_FRONT: Final = 0
#: the next turn, or the newest one that was claimed if none waits; and the last turn of a tenant
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
    """Let these new decisions wait for a worker, in the transaction that stores them.

    in_front: before all others. claims: decision -> key of the process that has claimed it and runs it at once.
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
                "decision_id": each.id,
                "tenant": tenant,
                "turn": _FRONT if in_front else turn,
                "arm": each.arm,
                "queued_at": each.made_at,
                "tries": int(each.id in claims),
                "claimed_by": claims.get(each.id),
                "claimed_until": claimed_until if each.id in claims else None,
                "chat": canonical(dict(each.query.chat)) if each.query.chat else None,
            }
            for turn, each in enumerate(group, start=first)
        ]
    insert_rows(connection, answer_queue, rows)


def remove(connection: Connection, ids: Collection[str], *, running: bool = True) -> None:
    """These decisions need no worker any more, in the transaction that stores their outcomes, or closes them.

    running: also those that a worker is at.
    """
    if ids:
        overwrite_freed(connection)  # what a chat brought
        unclaimed = "" if running else " AND claimed_by IS NULL"
        run(connection, f"DELETE FROM answer_queue WHERE decision_id IN ?{unclaimed}", sorted(ids))  # noqa: S608 # text of ours


def move_to_front(connection: Connection, decision_id: str) -> bool:
    """Let this decision be claimed next, unless it is claimed; whether it waits or is run."""
    turn = case((_WAITS, _FRONT), else_=answer_queue.c.turn)
    moved = update(answer_queue).where(answer_queue.c.decision_id == decision_id).values(turn=turn)
    return bool(connection.execute(moved).rowcount)


def waiting_ids(database: Database, *, limit: int) -> list[DecisionId]:
    """The decisions that nobody has claimed, in their order, `limit` at most."""
    first = select(answer_queue.c.decision_id).where(_WAITS).order_by(*_ORDER)
    with database.read() as connection:
        return list(connection.execute(first.limit(limit)).scalars())


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedDecision:
    """A decision that this process is to run."""

    decision_id: DecisionId
    #: runs that began before, of which none came to an outcome
    tries: int
    #: None: it was queued by a release that did not note it
    arm: ArmName | None
    #: its request as it came, for an arm that passes it on; {} if there is none
    chat: Mapping[str, Json]


class AnswerQueue(Claims):
    """The queue as one worker process sees it."""

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
        """Claim the decision whose turn it is; None if none waits. It counts as one try more from now on.

        tries: only one that was tried less often. without: none of these arms; those in front are then read and passed
        over. within: only decisions of these arms. only: this decision.
        """
        where = [] if tries is None else [answer_queue.c.tries < tries]
        if within is not None:
            where.append(answer_queue.c.arm.in_(sorted(within)))
        if only is not None:
            where.append(answer_queue.c.decision_id == only)
        if without:
            where.append(or_(answer_queue.c.arm.is_(None), answer_queue.c.arm.not_in(sorted(without))))
        if not self.wait(*where):
            return None
        with self._database.write() as connection:
            row = self.take(connection, *where)
        if row is None:
            return None
        chat = {} if row["chat"] is None else json.loads(row["chat"])
        return ClaimedDecision(decision_id=row["decision_id"], tries=row["tries"] - 1, arm=row["arm"], chat=chat)

    def drop(self, decision_id: DecisionId) -> None:
        """Remove a decision that needs no run: it was deleted, or has its outcome."""
        with self._database.write() as connection:
            remove(connection, [decision_id])
