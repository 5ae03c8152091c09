"""Judgements: which decisions wait for the judge, what one of them may cost, and where its score goes.

A judge claims a decision before it works on it, so that no other one does. The claim ends by itself: a judge that was
killed leaves nothing behind but an attempt. A score, what it cost and the end of the wait are one transaction.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, update

from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.rows.job_rows import (
    Job,
    Refused,
    change_job,
    drop_due,
    lock_job,
    move_day,
    next_day,
    old_jobs,
    waiting_for_judge,
)
from ragbandit.router.storage.sql.counters import Moves, moving
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.retries import back_off
from ragbandit.shared.types import DecisionId, Feedback

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
    """The cost of one try."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            dollars=self.dollars + other.dollars,
        )

    def as_counts(self) -> dict[str, float]:
        """By the columns of `judge_days`."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeClaim:
    """A decision that this judge alone works on, until the claim ends."""

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


class Judgements:
    """The judge's side of the database. Times are seconds since 1970; every call raises StoreError."""

    def __init__(self, store: DecisionStore, *, budget: DayBudget, expire_s: float, attempts: int) -> None:
        self.store = store
        self.database = store.database
        self.budget = budget
        self._expire_s = expire_s
        self._attempts = attempts

    def claim(self, decision_id: DecisionId, *, now: float, for_s: float) -> JudgeClaim | Refused:
        """Claim a decision that is due for so many seconds, within the day's budget, or say why not."""
        with self.database.write() as connection, moving(connection, shard=self.database.shard) as moves:
            day = move_day(connection, now=now)  # locked: the budget is that of all judges
            job = lock_job(
                connection, decision_id, kind="judge", now=now, attempts=self._attempts, expire_s=self._expire_s
            )
            if not isinstance(job, Job):
                if job in ("expired", "given_up"):
                    drop_due(connection, [decision_id], moves=moves)
                    move_day(connection, {job: 1}, now=now)
                return job
            if self._is_spent(day):
                # All at once: none of them may begin before the next day.
                later = update(jobs).where(jobs.c.kind == "judge", jobs.c.due_at <= now)
                connection.execute(later.values(due_at=next_day(now)))
                return "budget"
            move_day(connection, {"begun": 1}, now=now)
            attempt = job.attempts + 1
            change_job(
                connection, decision_id, kind="judge", attempt=job.attempts, attempts=attempt, due_at=now + for_s
            )
        return JudgeClaim(decision_id=decision_id, attempt=attempt, claimed_at=now, **job.facts)

    def _is_spent(self, day: Any) -> bool:
        spent = {
            "judgements": day["begun"],
            "tokens": day["prompt_tokens"] + day["completion_tokens"],
            "dollars": day["dollars"],
        }
        caps = {name: getattr(self.budget, name) for name in spent}
        return any(cap is not None and spent[name] >= cap for name, cap in caps.items())

    def keep(self, claim: JudgeClaim, *, feedback: Feedback, spent: Spent) -> bool:
        """Store a score, what it cost and the end of its wait; True if the score is new.

        A score that another judge stored before stays. Nothing but the cost is stored of one whose decision waits no
        more: it was erased, or waited too long. What cost nothing takes nothing of the day's judgements.
        """

        def end(connection: Connection, moves: Moves) -> None:
            counts = {"scored": 1, "begun": _began(spent), **spent.as_counts()}
            move_day(connection, counts, now=claim.claimed_at)
            if not drop_due(connection, [claim.decision_id], moves=moves):
                raise _NoMoreDueError

        try:
            (reply,) = self.store.add_feedback([feedback], beside=end)
        except _NoMoreDueError:
            with self.database.write() as connection:
                move_day(connection, spent.as_counts(), now=claim.claimed_at)
            return False
        if isinstance(reply, Conflict):
            return False
        if isinstance(reply, RagBanditError):
            raise reply
        return not reply.duplicate

    def fail(self, claim: JudgeClaim, *, spent: Spent, now: float, pause_s: float) -> Refused:
        """A try gave no score, for a reason of its own: try again later, or give up; which of them."""
        over = claim.attempt >= self._attempts
        with self.database.write() as connection, moving(connection, shard=self.database.shard) as moves:
            move_day(connection, {"failed": 1, **spent.as_counts()}, now=claim.claimed_at)
            if over:
                gone = drop_due(connection, [claim.decision_id], moves=moves)
                move_day(connection, {"given_up": len(gone)}, now=claim.claimed_at)
            else:
                _change(connection, claim, due_at=now + _pause(pause_s, claim.attempt))
        return "given_up" if over else "later"

    def put_back(self, claim: JudgeClaim, *, spent: Spent, now: float, pause_s: float) -> None:
        """A try ended since the server failed, or since this process ends (pause_s 0): it is no attempt.

        What cost nothing takes nothing of the day's judgements.
        """
        failed = 1 if pause_s else 0
        counts = {"failed": failed, "begun": _began(spent), **spent.as_counts()}
        with self.database.write() as connection:
            move_day(connection, counts, now=claim.claimed_at)
            due_at = now + (_pause(pause_s, claim.failures + 1) if pause_s else 0.0)
            facts = json.dumps({"share": claim.share, "failures": claim.failures + failed})
            _change(connection, claim, attempts=claim.attempt - 1, facts=facts, due_at=due_at)

    def postpone(self, claim: JudgeClaim, *, due_at: float) -> None:
        """Let a decision that was not tried be due later; it takes nothing of the day's judgements."""
        with self.database.write() as connection:
            move_day(connection, {"begun": -1}, now=claim.claimed_at)
            _change(connection, claim, attempts=claim.attempt - 1, due_at=due_at)

    def withhold(self, claim: JudgeClaim, *, suspicious: bool) -> None:
        """End the wait of a decision without a score; it takes nothing of the day's judgements."""
        with self.database.write() as connection, moving(connection, shard=self.database.shard) as moves:
            move_day(connection, {"begun": -1, "suspicious": int(suspicious)}, now=claim.claimed_at)
            drop_due(connection, [claim.decision_id], moves=moves)

    def new_budget(self, *, now: float) -> None:
        """Let what waits for the next day be due now: the budget may have been raised since."""
        with self.database.write() as connection:
            move_day(connection, now=now)
            waits = update(jobs).where(jobs.c.kind == "judge", jobs.c.due_at == next_day(now))
            connection.execute(waits.values(due_at=now))


class _NoMoreDueError(Exception):
    """The decision waits for the judge no more."""


def _change(connection: Connection, claim: JudgeClaim, **values: float | str) -> None:
    """Change its row, unless another judge has claimed it since."""
    change_job(connection, claim.decision_id, kind="judge", attempt=claim.attempt, **values)


def _began(spent: Spent) -> int:
    """What a try gives back of the day's judgements."""
    return 0 if any(spent.as_counts().values()) else -1


def _pause(pause_s: float, tries: int) -> float:
    return back_off(tries, base_s=pause_s, longest_s=max(pause_s, _LONGEST_PAUSE_S))


def expire(database: Database, *, before: float, now: float) -> int:
    """Let decisions whose outcomes came before that time wait no more, a batch of them; how many."""
    with database.read() as connection:
        if not waiting_for_judge(connection):
            return 0
    with database.write() as connection, moving(connection, shard=database.shard) as moves:
        move_day(connection, now=now)
        old = old_jobs(kind="judge", before=before).limit(_BATCH)
        gone = drop_due(connection, connection.execute(old).scalars(), moves=moves)
        move_day(connection, {"expired": len(gone)}, now=now)
    return len(gone)
