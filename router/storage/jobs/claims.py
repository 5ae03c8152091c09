"""Jobs: decisions that need an answer, a score of the judge or a check, or a label, and the claims of processes.

Jobs of every kind are handled alike. A job is inserted in the transaction that makes the work necessary. A process
claims it (`Claims.take`, which counts a try), renews the claim while it works, and deletes the job in the transaction
that stores the result. If the process dies, another one removes the claim, so only a try is lost.

Rows of `waiting` are locked before rows of `jobs`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, RowMapping, delete, exists, func, select, update

from ragbandit.router.storage.access.reservations import RESERVING, charge_lost
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import CounterName, Increments, WriteTransaction
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import database_time, is_holder_alive
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.processes.this_process import ProcessIdentity, this_process
from ragbandit.shared.types import DecisionId

#: kinds of jobs whose result is a score; `jobs/scores.py` inserts them
ScoreKind = Literal["judge", "check", "label"]
JobKind = Literal["answer"] | ScoreKind
_DUE: Final[Mapping[ScoreKind, CounterName]] = {"judge": "judge_due", "check": "check_due", "label": "label_due"}

#: Time after which a claim expires unless it is renewed, seconds. With a shorter time another host would more often
#: repeat, and pay for, the answer of a process that only stalled (docs/operations.md, Leases).
CLAIM_S: Final = 2.5
#: order in which jobs of one kind are claimed
_ORDER: Final = jobs.c.turn, jobs.c.due_at, jobs.c.decision_id


class Claims:
    """The jobs of one kind, each claimed by one process at a time. Every method raises StoreError.

    A process renews its claims while it runs. After its end, other processes remove its claims: processes on the same
    host at once, processes on other hosts when the claims have expired.
    """

    def __init__(self, database: Database, *, kind: JobKind, process: ProcessIdentity | None = None) -> None:
        """process: None for this process."""
        self._database, self._is_kind = database, jobs.c.kind == kind
        self.process = process or this_process()

    def has_free_job(self, *where: ColumnElement[bool]) -> bool:
        """Whether a job can be claimed. Call it before `take`, which needs a write transaction."""
        with self._database.read() as connection:
            return bool(connection.execute(select(exists().where(*self._free_rows(*where)))).scalar())

    def take(self, connection: Connection, *where: ColumnElement[bool]) -> RowMapping | None:
        """Claim the next job and count a try; None if no job is free."""
        first = select(jobs.c.decision_id).where(*self._free_rows(*where)).order_by(*_ORDER).limit(1)
        chosen = first.with_for_update(skip_locked=True).scalar_subquery()
        claim = {"claimed_by": self.process.key, "claimed_until": database_time(self._database) + CLAIM_S}
        claimed = update(jobs).where(self._is_kind, jobs.c.decision_id == chosen)
        return connection.execute(claimed.values(**claim, tries=jobs.c.tries + 1).returning(jobs)).mappings().first()

    def _free_rows(self, *where: ColumnElement[bool]) -> tuple[ColumnElement[bool], ...]:
        return (jobs.c.claimed_by.is_(None), self._is_kind, *where)

    def renew(self, ids: Sequence[DecisionId]) -> None:
        """Renew the claims of decisions that this process works on. To be called much more often than every CLAIM_S."""
        if ids:
            self._set(ids, claimed_until=database_time(self._database) + CLAIM_S)

    def give_back(self, decision_id: DecisionId) -> None:
        """Let another process claim the job. The job keeps its position, and this try does not count."""
        self._set([decision_id], claimed_by=None, claimed_until=None, tries=jobs.c.tries - 1)

    def free_lost(self, *, held: Collection[DecisionId]) -> list[DecisionId]:
        """Remove claims of ended processes, and own expired claims except on `held`. Returns the freed decisions."""
        is_expired = jobs.c.claimed_until <= database_time(self._database)
        query = select(jobs.c.claimed_by, func.min(jobs.c.claimed_until) <= database_time(self._database))
        query = query.where(jobs.c.claimed_by.is_not(None), self._is_kind).group_by(jobs.c.claimed_by)
        with self._database.read() as connection:
            holders = connection.execute(query).all()
        freed: list[DecisionId] = []
        for holder, some_expired in holders:
            is_alive = is_holder_alive(holder)
            if is_alive is False:
                freed += self._free(jobs.c.claimed_by == holder)
            elif some_expired and holder == self.process.key:
                held_here = jobs.c.decision_id.in_(held)
                freed += self._free(jobs.c.claimed_by == holder, is_expired, ~held_here, is_lost=False)
            elif some_expired and is_alive is None:
                freed += self._free(jobs.c.claimed_by == holder, is_expired)
        return freed

    def _free(self, *where: ColumnElement[bool], is_lost: bool = True) -> list[DecisionId]:
        """Remove claims of jobs that no other transaction has locked.

        is_lost: whether a process may have ended after it asked a model, so that the estimates are charged
        """
        chosen = select(jobs.c.decision_id).where(*where, self._is_kind).with_for_update(skip_locked=True)
        freed = update(jobs).where(jobs.c.decision_id.in_(chosen), self._is_kind)
        freed = freed.values(claimed_by=None, claimed_until=None)
        columns = jobs.c[RESERVING]
        with WriteTransaction(self._database) as (connection, tally):
            rows = connection.execute(freed.returning(*columns)).mappings().all()
            if is_lost:
                charge_lost(connection, tally, rows, now=self._database.clock.now())
        return [row["decision_id"] for row in rows]

    def _set(self, ids: Sequence[DecisionId], **values: Any) -> None:
        is_claimed = jobs.c.claimed_by == self.process.key, jobs.c.decision_id.in_(ids)
        with self._database.write() as connection:
            connection.execute(update(jobs).where(*is_claimed, self._is_kind).values(**values))


def count_jobs(kind: ScoreKind, change: int, *, tally: Increments) -> None:
    tally.add(_DUE[kind], change)


def drop_jobs(connection: Connection, ids: Iterable[str], *, kind: ScoreKind, tally: Increments) -> list[str]:
    """Delete the jobs of these decisions. Returns the ids of decisions that had one."""
    matching = delete(jobs).where(jobs.c.kind == kind, jobs.c.decision_id.in_(sorted(ids)))
    dropped = list(connection.execute(matching.returning(jobs.c.decision_id)).scalars())
    count_jobs(kind, -len(dropped), tally=tally)
    return dropped
