"""Judgements: decisions that wait for a score of the judge or of a check, the costs of scores, and their storage.

A judge claims a decision before the work, so that no other judge works on it. The claim ends by itself: a killed judge
leaves only an attempt. A score, its cost and the end of the wait are one transaction.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, cast

from sqlalchemy import Connection, select, update

from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.rows.outcome_rows import JobKind, drop_jobs, move_day, next_day, waiting_jobs
from ragbandit.router.storage.sql.counters import Moves, counting
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Claims
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.child_process import ProcessIdentity
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.outbound import back_off
from ragbandit.shared.types import DecisionId, Feedback, Receipt

#: decisions that one transaction removes
_BATCH: Final = 500
#: longest pause between two tries, seconds
_LONGEST_PAUSE_S: Final = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DayBudget:
    """Caps on a day (UTC) of judging; None is no cap. Tokens and dollars may be exceeded by the calls under way."""

    judgements: int | None = None
    tokens: int | None = None
    dollars: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """The cost of one try, by the columns of `judge_days`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(**{name: getattr(self, name) + amount for name, amount in asdict(other).items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A decision that was claimed and is not begun: it waited too long, was tried too often, or the budget is spent."""

    decision_id: DecisionId
    why: Literal["expired", "given_up", "budget"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreJob:
    """A decision that this process alone works on."""

    decision_id: DecisionId
    #: this one included
    attempt: int
    #: tries before that a failing server ended
    failures: int
    #: the share of decisions that were judged when it was sampled
    share: float
    #: what it costs counts in the day of that time
    claimed_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeState:
    """What waits for the judge now, and what the day (UTC) brought."""

    waiting: int = 0
    #: by the columns of `judge_days`
    today: Mapping[str, Any] = field(default_factory=dict)


class ScoreQueue:
    """The database's side of the judge, or of a check. Times are seconds since 1970; every call raises StoreError.

    attempts, expire_s: tries and seconds after which a decision is given up. budget: of the judge.
    """

    def __init__(
        self,
        store: DecisionStore,
        *,
        kind: JobKind,
        attempts: int,
        expire_s: float,
        budget: DayBudget | None = None,
        process: ProcessIdentity | None = None,
    ) -> None:
        self.store, self.database, self.kind = store, store.database, kind
        order = jobs.c.due_at, jobs.c.decision_id
        self.claims = Claims(self.database, jobs, jobs.c.kind == kind, order=order, process=process)
        self._attempts, self._expire_s, self._budget = attempts, expire_s, budget or DayBudget()

    def claim(self, *, now: float) -> ScoreJob | Refused | None:
        """Claim the decision that has been due longest; Refused if the day's budget is spent, None if none is due."""
        if not self.claims.wait(jobs.c.due_at <= now):
            return None
        with counting(self.database) as (connection, moves):
            day = self._count(connection, now=now)  # locked: the budget is that of all judges
            row = self.claims.take(connection, jobs.c.due_at <= now)
            if row is None:
                return None
            facts = {"failures": 0, "share": 1.0, **json.loads(row["facts"])}
            job = ScoreJob(decision_id=row["decision_id"], attempt=row["tries"], claimed_at=now, **facts)
            if row["made_at"] <= now - self._expire_s:
                return self._drop(connection, job, why="expired", moves=moves)
            if job.attempt > self._attempts:
                return self._drop(connection, job, why="given_up", moves=moves)
            if self._is_spent(day):
                self._change(connection, job, tries=job.attempt - 1)
                # All at once: none of them may begin before the next day.
                later = update(jobs).where(jobs.c.kind == self.kind, jobs.c.due_at <= now)
                connection.execute(later.values(due_at=next_day(now)))
                return Refused(decision_id=job.decision_id, why="budget")
            self._count(connection, {"begun": 1}, now=now)
        return job

    def _is_spent(self, day: Mapping[str, Any]) -> bool:
        columns = {"judgements": ["begun"], "tokens": ["prompt_tokens", "completion_tokens"], "dollars": ["dollars"]}
        caps = {name: cap for name, cap in asdict(self._budget).items() if cap is not None}
        return any(sum(day[column] for column in columns[name]) >= cap for name, cap in caps.items())

    def keep(self, job: ScoreJob, *, feedback: Feedback, spent: Spent) -> Receipt | None:
        """Store a score, what it cost and the end of its wait; None where the score is not new.

        A score that another judge stored before stays. Nothing but the cost is stored of one whose decision waits no
        more: it was erased, or waited too long. What cost nothing takes nothing of the day's judgements.
        """

        def end(connection: Connection, moves: Moves) -> None:
            counts = {"scored": 1, "begun": _began(spent), **asdict(spent)}
            self._count(connection, counts, now=job.claimed_at)
            if not drop_jobs(connection, [job.decision_id], kind=self.kind, moves=moves):
                raise _NoMoreDueError

        try:
            (reply,) = self.store.add_feedback([feedback], also=end)
        except _NoMoreDueError:
            with counting(self.database) as (connection, _):
                self._count(connection, asdict(spent), now=job.claimed_at)
            return None
        if isinstance(reply, RagBanditError) and not isinstance(reply, Conflict):
            raise reply
        return reply if isinstance(reply, Receipt) and not reply.duplicate else None

    def fail(self, job: ScoreJob, *, spent: Spent, now: float, pause_s: float) -> Literal["given_up", "later"]:
        """A try gave no score, for a reason of its own: try again later, or give up; which of them."""
        with counting(self.database) as (connection, moves):
            self._count(connection, {"failed": 1, **asdict(spent)}, now=job.claimed_at)
            if job.attempt >= self._attempts:
                self._drop(connection, job, why="given_up", moves=moves)
                return "given_up"
            self._change(connection, job, due_at=now + _pause(pause_s, job.attempt))
        return "later"

    def put_back(self, job: ScoreJob, *, due_at: float, spent: Spent = Spent(), pause_s: float = 0.0) -> None:
        """Let a job be due again at due_at, without counting an attempt: its failure had another cause.

        pause_s: pause after the first failure of the server, longer after each further failure. A try without cost does
        not count in the day's judgements.
        """
        failures = job.failures + (1 if pause_s else 0)
        counts = {"failed": failures - job.failures, "begun": _began(spent), **asdict(spent)}
        due_at += _pause(pause_s, failures) if pause_s else 0.0
        facts = json.dumps({"share": job.share, "failures": failures})
        with counting(self.database) as (connection, _):
            self._count(connection, counts, now=job.claimed_at)
            self._change(connection, job, tries=job.attempt - 1, facts=facts, due_at=due_at)

    def withhold(self, job: ScoreJob, *, suspicious: bool = False) -> None:
        """End the wait of a decision without a score; it takes nothing of the day's judgements."""
        with counting(self.database) as (connection, moves):
            self._count(connection, {"begun": -1, "suspicious": int(suspicious)}, now=job.claimed_at)
            drop_jobs(connection, [job.decision_id], kind=self.kind, moves=moves)

    def new_budget(self, *, now: float) -> None:
        """Let what waits for the next day be due now: the budget may have been raised since."""
        with counting(self.database) as (connection, _):
            self._count(connection, now=now)
            waits = update(jobs).where(jobs.c.kind == self.kind, jobs.c.due_at == next_day(now))
            connection.execute(waits.values(due_at=now))

    def _count(
        self, connection: Connection, counts: Mapping[str, float] | None = None, *, now: float
    ) -> Mapping[str, Any]:
        """Add to the counts of a day of the judge, whose row is locked then; of checks none are kept."""
        return cast("Mapping[str, Any]", move_day(connection, counts, now=now)) if self.kind == "judge" else {}

    def _drop(
        self, connection: Connection, job: ScoreJob, *, why: Literal["expired", "given_up"], moves: Moves
    ) -> Refused:
        gone = drop_jobs(connection, [job.decision_id], kind=self.kind, moves=moves)
        self._count(connection, {why: len(gone)}, now=job.claimed_at)
        return Refused(decision_id=job.decision_id, why=why)

    def _change(self, connection: Connection, job: ScoreJob, **values: float | str) -> None:
        """Let its row be claimed again, unless another judge has claimed it since."""
        mine = jobs.c.kind == self.kind, jobs.c.decision_id == job.decision_id, jobs.c.tries == job.attempt
        connection.execute(update(jobs).where(*mine).values(claimed_by=None, claimed_until=None, **values))


class _NoMoreDueError(Exception):
    """The decision waits no more."""


def _began(spent: Spent) -> int:
    """What a try gives back of the day's judgements."""
    return 0 if any(asdict(spent).values()) else -1


def _pause(pause_s: float, tries: int) -> float:
    return back_off(tries, base_s=pause_s, longest_s=max(pause_s, _LONGEST_PAUSE_S))


def expire(database: Database, *, kind: JobKind, before: float, now: float) -> int:
    """Let decisions whose outcomes came before that time wait no more, a batch of them; how many."""
    with database.read() as connection:
        if not waiting_jobs(connection, kind=kind):
            return 0
    old = select(jobs.c.decision_id).where(jobs.c.kind == kind, jobs.c.made_at <= before).limit(_BATCH)
    with counting(database) as (connection, moves):
        if kind == "judge":
            move_day(connection, now=now)  # locked first, in the order of judges
        gone = drop_jobs(connection, connection.execute(old).scalars(), kind=kind, moves=moves)
        if kind == "judge":
            move_day(connection, {"expired": len(gone)}, now=now)
    return len(gone)
