"""Answer queue: the decisions that wait for a worker of ours, and which process runs which.

A row comes in the transaction that stores the decision and leaves in the one that stores its outcome or closes it, so
that none is ever lost or answered by two. A worker process claims the row with the lowest turn and renews its claim
while it lives. The claim of a process that has ended is taken away: at once on its own host, where the kernel knows,
elsewhere when it has run out.

Tenants take turns, by start-time fair queueing with one unit a decision (Goyal, Vin and Cheng 1997): a new decision
gets the turn after its tenant's last one, or the turn that is next, whichever is later. So a tenant with a thousand
decisions delays the first one of another by one. Every step reads a few rows of an index, however many wait.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, and_, bindparam, case, delete, exists, func, or_, select, update

from ragbandit.router.storage.sql.bulk_insert import insert_rows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import clock
from ragbandit.router.storage.sql.tables import answer_queue
from ragbandit.shared.child_process import ProcessIdentity, this_process
from ragbandit.shared.types import ArmName, Decision, DecisionId

#: a claim that was not renewed for that long has run out, seconds
CLAIM_S: Final = 3.0

_WAITS: Final = answer_queue.c.claimed_by.is_(None)
_CLAIMED: Final = answer_queue.c.claimed_by.is_not(None)
#: the turn that is next, or while none waits the one that was taken last; and the last turn of a tenant
_NEXT: Final = select(answer_queue.c.turn).where(_WAITS).order_by(answer_queue.c.turn).limit(1).scalar_subquery()
_TAKEN: Final = select(func.max(answer_queue.c.turn)).where(_CLAIMED).scalar_subquery()
_LAST: Final = (
    select(func.max(answer_queue.c.turn)).where(answer_queue.c.tenant == bindparam("tenant")).scalar_subquery()
)
_TURNS: Final = select(func.coalesce(_NEXT, _TAKEN, 1), func.coalesce(_LAST, 0))


def enqueue(connection: Connection, decisions: Iterable[Decision]) -> None:
    """Let these new decisions wait for a worker, in the transaction that stores them."""
    by_tenant: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_tenant.setdefault(decision.query.tenant, []).append(decision)
    rows = []
    for tenant, group in by_tenant.items():
        upcoming, last = connection.execute(_TURNS, {"tenant": tenant}).one()
        first = max(upcoming, last + 1)
        rows += [
            {
                "decision_id": each.id,
                "tenant": tenant,
                "turn": turn,
                "arm": each.arm,
                "queued_at": each.made_at,
                "tries": 0,
            }
            for turn, each in enumerate(group, start=first)
        ]
    insert_rows(connection, answer_queue, rows)


def remove(connection: Connection, ids: Collection[str], *, running: bool = True) -> None:
    """These decisions need no worker any more, in the transaction that stores their outcomes, or closes them.

    running: also those that a worker is at.
    """
    if ids:
        here = answer_queue.c.decision_id.in_(sorted(ids))
        connection.execute(delete(answer_queue).where(here if running else and_(here, _WAITS)))


def move_to_front(connection: Connection, decision_id: str) -> bool:
    """Let this decision be claimed next, unless it is claimed; whether it waits or is run."""
    turn = case((_WAITS, 0), else_=answer_queue.c.turn)
    moved = update(answer_queue).where(answer_queue.c.decision_id == decision_id).values(turn=turn)
    return bool(connection.execute(moved).rowcount)


def waiting_ids(database: Database, *, limit: int) -> list[DecisionId]:
    """The decisions that nobody has claimed, in their order, `limit` at most."""
    first = select(answer_queue.c.decision_id).where(_WAITS).order_by(answer_queue.c.turn, answer_queue.c.queued_at)
    with database.read() as connection:
        return list(connection.execute(first.limit(limit)).scalars())


def claims(database: Database) -> dict[DecisionId, str]:
    """The decisions that are run now -> key of the process that runs each."""
    query = select(answer_queue.c.decision_id, answer_queue.c.claimed_by).where(_CLAIMED)
    with database.read() as connection:
        return {DecisionId(row.decision_id): row.claimed_by for row in connection.execute(query)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedDecision:
    """A decision that this process is to run."""

    decision_id: DecisionId
    #: runs that began before, of which none came to an outcome
    tries: int
    #: None: it was queued by a release that did not note it
    arm: ArmName | None


class AnswerQueue:
    """The queue as one worker process sees it. Every method raises StoreError.

    process: in whose name decisions are claimed; None: this one's.
    """

    def __init__(self, database: Database, *, process: ProcessIdentity | None = None) -> None:
        self._database = database
        self.process = process or this_process()

    def claim(self, *, tries: int | None = None, without: Collection[ArmName] = ()) -> ClaimedDecision | None:
        """Claim the decision whose turn it is; None: none waits. It counts as one try more from now on.

        tries: only one that was tried less often. without: none of these arms; those in front are then read and passed
        over.
        """
        free = _WAITS if tries is None else and_(_WAITS, answer_queue.c.tries < tries)
        if without:
            free = and_(free, or_(answer_queue.c.arm.is_(None), answer_queue.c.arm.not_in(sorted(without))))
        with self._database.read() as connection:  # most looks find none, and need no write
            if not connection.execute(select(exists().where(free))).scalar():
                return None
        first = select(answer_queue.c.decision_id).where(free).order_by(answer_queue.c.turn, answer_queue.c.queued_at)
        chosen = first.limit(1).with_for_update(skip_locked=True).scalar_subquery()
        claimed = (
            update(answer_queue)
            .where(answer_queue.c.decision_id == chosen)
            .values(
                claimed_by=self.process.key,
                claimed_until=clock(self._database) + CLAIM_S,
                tries=answer_queue.c.tries + 1,
            )
            .returning(answer_queue.c.decision_id, answer_queue.c.tries, answer_queue.c.arm)
        )
        with self._database.write() as connection:
            row = connection.execute(claimed).first()
        return None if row is None else ClaimedDecision(decision_id=row.decision_id, tries=row.tries - 1, arm=row.arm)

    def renew(self, ids: Sequence[DecisionId]) -> None:
        """This process lives, and has these in hand: to be repeated well within CLAIM_S."""
        if ids:
            self._set(ids, claimed_until=clock(self._database) + CLAIM_S)

    def give_back(self, decision_id: DecisionId) -> None:
        """Let another process run it: it keeps its turn, and the try that ends so counts nothing."""
        self._set([decision_id], claimed_by=None, claimed_until=None, tries=answer_queue.c.tries - 1)

    def drop(self, decision_id: DecisionId) -> None:
        """Nobody is to run it: there is no such decision any more, or it has its outcome."""
        with self._database.write() as connection:
            remove(connection, [decision_id])

    def free_lost(self, *, held: Collection[DecisionId]) -> list[DecisionId]:
        """Let decisions be claimed again whose process has ended; they keep their turn. Returns them.

        held: what this process has in hand; its other claims are lost when they have run out.
        """
        over = answer_queue.c.claimed_until <= clock(self._database)
        with self._database.read() as connection:
            claims = connection.execute(
                select(answer_queue.c.decision_id, answer_queue.c.claimed_by, over.label("over")).where(_CLAIMED)
            ).all()
        lives = {key: self._lives(key) for key in {row.claimed_by for row in claims}}
        lost: dict[str, list[str]] = {}
        for row in claims:
            mine = row.claimed_by == self.process.key
            ended = row.decision_id not in held if mine else lives[row.claimed_by] is None
            if lives[row.claimed_by] is False or (row.over and ended):
                lost.setdefault(row.claimed_by, []).append(row.decision_id)
        return [key for holder, ids in lost.items() for key in self._free(holder, ids=ids, dead=lives[holder] is False)]

    def _lives(self, key: str) -> bool | None:
        process = ProcessIdentity.from_key(key)
        return None if process is None else process.is_alive()

    def _free(self, holder: str, *, ids: Sequence[str], dead: bool) -> list[DecisionId]:
        """Take these claims of a holder away, unless they were renewed or taken away meanwhile."""
        still = [answer_queue.c.claimed_by == holder, answer_queue.c.decision_id.in_(ids)]
        if not dead:
            still.append(answer_queue.c.claimed_until <= clock(self._database))
        chosen = select(answer_queue.c.decision_id).where(*still).with_for_update(skip_locked=True)
        freed = update(answer_queue).where(answer_queue.c.decision_id.in_(chosen))
        with self._database.write() as connection:
            rows = connection.execute(
                freed.values(claimed_by=None, claimed_until=None).returning(answer_queue.c.decision_id)
            )
            return [DecisionId(key) for key in rows.scalars()]

    def _set(self, ids: Sequence[DecisionId], **values: Any) -> None:
        mine = answer_queue.c.claimed_by == self.process.key, answer_queue.c.decision_id.in_(ids)
        with self._database.write() as connection:
            connection.execute(update(answer_queue).where(*mine).values(**values))
