"""The queues of decisions to score, one of the judge and one of the check, and the judge's costs."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, cast

from sqlalchemy import select, update

from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.claims import Claims, ScoreKind, drop_jobs
from ragbandit.router.storage.jobs.judge_days import move_day
from ragbandit.router.storage.jobs.judged_arms import JudgedArm, count_judged
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import ALL, Increments, WriteTransaction, next_day_start, stored_counts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.model_servers.outbound import back_off
from ragbandit.shared.processes.this_process import ProcessIdentity
from ragbandit.shared.types import ArmName, DecisionId, Feedback, Receipt

_LONGEST_PAUSE_S: Final = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DayBudget:
    """Limits of judging per UTC day; None for no limit. Calls under way may exceed the limits of tokens and dollars."""

    judgements: int | None = None
    tokens: int | None = None
    dollars: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreCost:
    """The cost of one try. The fields are columns of `judge_days`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A decision that is not scored: its outcome is too old, all tries failed, or the budget of today is spent."""

    decision_id: DecisionId
    why: Literal["expired", "given_up", "budget"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreJob:
    decision_id: DecisionId
    #: number of this try, from 1
    attempt: int
    #: number of earlier tries that failed because the judge's server failed
    failures: int
    #: share of decisions that the judge sampled when this decision was sampled
    share: float
    #: time of the claim; costs count for the day of this time
    claimed_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeState:
    waiting: int = 0
    #: column of `judge_days` -> value of this UTC day
    today: Mapping[str, Any] = field(default_factory=dict)
    #: arm -> its answers of the last 7 days that were scored, or withheld because a text gives the judge instructions
    arms: Mapping[ArmName, JudgedArm] = field(default_factory=dict)


class ScoreQueue:
    """The queue of the judge or of the check. Times are seconds since 1970. Every method may raise StoreError.

    attempts: maximum number of tries of a decision. expire_s: maximum age of an outcome that is scored, seconds
    """

    def __init__(
        self,
        store: DecisionStore,
        *,
        kind: ScoreKind,
        attempts: int,
        expire_s: float,
        budget: DayBudget | None = None,
        process: ProcessIdentity | None = None,
    ) -> None:
        self.store, self.database = store, store.database
        self.kind = kind
        self.claims = Claims(self.database, kind=kind, process=process)
        self._attempts, self._expire_s = attempts, expire_s
        self._budget = budget or DayBudget()

    def claim(self, *, now: float, expiring: float | None = None) -> ScoreJob | Refused | None:
        """Claim the decision that is due longest. Returns Refused if it must not be judged, None if none is due.

        expiring: the time at which the age of an outcome is compared with `expire_s`; by default now
        """
        is_due = jobs.c.turn == 0, jobs.c.due_at <= now  # a range of the index `jobs_next`
        if not self.claims.has_free_job(*is_due):
            return None
        with WriteTransaction(self.database) as (connection, tally):
            day = self._count(connection, now=now)  # locks the day's row, since all judges share the day's budget
            row = self.claims.take(connection, *is_due)
            if row is None:
                return None
            values = {"failures": 0, "share": 1.0, **json.loads(row["facts"])}
            job = ScoreJob(decision_id=row["decision_id"], attempt=row["tries"], claimed_at=now, **values)
            if row["made_at"] <= (now if expiring is None else expiring) - self._expire_s:
                return self._drop(connection, job, reason="expired", tally=tally)
            if job.attempt > self._attempts:
                return self._drop(connection, job, reason="given_up", tally=tally)
            if self._is_spent(day):
                self._change(connection, job, tries=job.attempt - 1)
                # None of the due decisions may begin before the next day.
                later = update(jobs).where(jobs.c.kind == self.kind, jobs.c.due_at <= now)
                connection.execute(later.values(due_at=next_day_start(now)))
                return Refused(decision_id=job.decision_id, why="budget")
            self._count(connection, {"begun": 1}, now=now)
        return job

    def _is_spent(self, day: Mapping[str, Any]) -> bool:
        if self.kind != "judge":
            return False
        tokens = day["prompt_tokens"] + day["completion_tokens"]
        used = {"judgements": day["begun"], "tokens": tokens, "dollars": day["dollars"]}
        return any(cap is not None and used[name] >= cap for name, cap in asdict(self._budget).items())

    def store_score(
        self, job: ScoreJob, *, feedback: Feedback, cost: ScoreCost, arm: ArmName | None = None
    ) -> Receipt | None:
        """Store a score and its cost, and delete the job. Returns None if the score is not stored.

        The score is not stored if another judge has stored one, or if the job has left the queue, because the decision
        was erased or the job expired. A score without cost does not count as a judgement of the day. arm: the arm whose
        answer the judge scored; None for checks.
        """

        def end(connection: Connection, tally: Increments) -> None:
            counts = {"scored": 1, "begun": _began(cost), **asdict(cost)}
            self._count(connection, counts, now=job.claimed_at)
            if not drop_jobs(connection, [job.decision_id], kind=self.kind, tally=tally):
                raise _NotQueuedError
            if arm is not None:
                count_judged(tally, arm, result="scored", now=job.claimed_at)

        try:
            (reply,) = self.store.add_feedback([feedback], also=end)
        except _NotQueuedError:
            with WriteTransaction(self.database) as (connection, _):
                self._count(connection, asdict(cost), now=job.claimed_at)
            return None
        if isinstance(reply, RagBanditError) and not isinstance(reply, Conflict):
            raise reply
        return reply if isinstance(reply, Receipt) and not reply.duplicate else None

    def fail(self, job: ScoreJob, *, cost: ScoreCost, now: float, pause_s: float) -> Literal["given_up", "later"]:
        """Record a try that failed because of the decision. It is tried again later, unless this was the last try."""
        with WriteTransaction(self.database) as (connection, tally):
            self._count(connection, {"failed": 1, **asdict(cost)}, now=job.claimed_at)
            if job.attempt >= self._attempts:
                self._drop(connection, job, reason="given_up", tally=tally)
                return "given_up"
            self._change(connection, job, due_at=now + _pause(pause_s, job.attempt))
        return "later"

    def put_back(self, job: ScoreJob, *, due_at: float, cost: ScoreCost = ScoreCost(), pause_s: float = 0.0) -> None:
        """Put a job back without counting the try, since its decision has not caused the failure.

        pause_s: further pause after a server's first failure, which grows with each failure; 0 if no server failed
        """
        failures = job.failures + (1 if pause_s else 0)
        counts = {"failed": failures - job.failures, "begun": _began(cost), **asdict(cost)}
        due_at += _pause(pause_s, failures) if pause_s else 0.0
        facts = json.dumps({"share": job.share, "failures": failures})
        with WriteTransaction(self.database) as (connection, _):
            self._count(connection, counts, now=job.claimed_at)
            self._change(connection, job, tries=job.attempt - 1, facts=facts, due_at=due_at)

    def withhold(self, job: ScoreJob, *, suspicious: ArmName | None = None) -> None:
        """Delete a job without a score, and do not count it as a judgement of the day.

        suspicious: the arm of the answer, if a text gives the judge instructions
        """
        with WriteTransaction(self.database) as (connection, tally):
            counts = {"begun": -1, "suspicious": int(suspicious is not None)}
            self._count(connection, counts, now=job.claimed_at)
            if suspicious is not None:
                count_judged(tally, suspicious, result="suspicious", now=job.claimed_at)
            drop_jobs(connection, [job.decision_id], kind=self.kind, tally=tally)

    def make_postponed_due(self, *, now: float) -> None:
        """Make decisions due that were postponed to the next day, since the budget may have been raised."""
        with WriteTransaction(self.database) as (connection, _):
            self._count(connection, now=now)
            postponed = update(jobs).where(jobs.c.kind == self.kind, jobs.c.due_at == next_day_start(now))
            connection.execute(postponed.values(due_at=now))

    def _count(
        self, connection: Connection, counts: Mapping[str, float] | None = None, *, now: float
    ) -> Mapping[str, Any]:
        """Add to the judge's counts of a day, and lock their row. Does nothing for checks, which have no counts."""
        return cast("Mapping[str, Any]", move_day(connection, counts, now=now)) if self.kind == "judge" else {}

    def _drop(
        self, connection: Connection, job: ScoreJob, *, reason: Literal["expired", "given_up"], tally: Increments
    ) -> Refused:
        dropped = drop_jobs(connection, [job.decision_id], kind=self.kind, tally=tally)
        self._count(connection, {reason: len(dropped)}, now=job.claimed_at)
        return Refused(decision_id=job.decision_id, why=reason)

    def _change(self, connection: Connection, job: ScoreJob, **values: float | str) -> None:
        """Change the job and remove its claim, unless another process has claimed it since."""
        same_try = jobs.c.kind == self.kind, jobs.c.decision_id == job.decision_id, jobs.c.tries == job.attempt
        connection.execute(update(jobs).where(*same_try).values(claimed_by=None, claimed_until=None, **values))


class _NotQueuedError(Exception):
    """The job of a score has left the queue."""


def _began(cost: ScoreCost) -> int:
    """Correction of the day's number of judgements: -1 for a free try, which does not count, else 0."""
    return 0 if any(asdict(cost).values()) else -1


def _pause(pause_s: float, tries: int) -> float:
    return back_off(tries, base_s=pause_s, longest_s=max(pause_s, _LONGEST_PAUSE_S))


def expire(database: Database, *, kind: ScoreKind, before: float, now: float) -> int:
    """Delete up to 500 jobs whose outcomes came before `before`. Returns the number of deleted jobs."""
    with database.read() as connection:
        if not stored_counts(connection, label=ALL)[f"{kind}_due"]:
            return 0
    old = (
        select(jobs.c.decision_id)
        .where(jobs.c.kind == kind, jobs.c.made_at <= before, jobs.c.tenant.is_(None))
        .limit(500)
    )
    with WriteTransaction(database) as (connection, tally):
        if kind == "judge":
            move_day(connection, now=now)  # locks the day's row first, as judges do
        dropped = drop_jobs(connection, connection.execute(old).scalars(), kind=kind, tally=tally)
        if kind == "judge":
            move_day(connection, {"expired": len(dropped)}, now=now)
    return len(dropped)
