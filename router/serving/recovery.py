"""Recovery loop: repeats what a lost notification left undone. Any process may run it at any time."""

import logging
from dataclasses import dataclass

from ragbandit.router.config.settings import Settings
from ragbandit.router.jobs.judge_queue import MAX_JUDGE_JOBS
from ragbandit.router.jobs.queue import Jobs
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.storage import judgements
from ragbandit.router.storage.ledgers.inheritance import is_inheriting
from ragbandit.router.storage.ledgers.ledger import Ledger

__all__ = ["Recovered", "recover"]

log = logging.getLogger("ragbandit.recovery")

#: decisions queued again in one pass
LIMIT = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """The notifications that one pass repeated."""

    #: something was ready to learn or to be inherited, so the learner was notified
    learner_notified: bool
    #: unanswered decisions that no queue and no worker had
    requeued: int


def recover(ledger: Ledger, *, jobs: Jobs, settings: Settings, now: float) -> Recovered:
    """Notify the learner of what is ready to learn; queue unanswered decisions that are neither queued nor running.

    No more are queued than the answer queue has room for; the rest waits in the database. Raises QueueError if Redis
    cannot be reached: the next pass finds the same.
    """
    ready = is_inheriting(ledger) or ledger.ready(closing_rule(settings.learning), now=now, limit=1)
    if ready:
        jobs.enqueue_learn(ledger.label)
    _recover_judgements(ledger, jobs=jobs, settings=settings, now=now)
    room = min(LIMIT, settings.workers.max_queued - jobs.depth()["answer"])
    due = ledger.unanswered(before=now - settings.workers.retry_after_s, limit=LIMIT) if room > 0 else {}
    missing = jobs.missing(due)[: max(0, room)]
    for decision_id in missing:
        jobs.enqueue_answer(decision_id, tenant=due[decision_id], timeout_s=settings.budget.seconds)
    if missing:
        log.warning(
            "unanswered decisions were not queued; they are queued again",
            extra={"action": "requeue", "count": len(missing)},
        )
    return Recovered(learner_notified=bool(ready), requeued=len(missing))


def _recover_judgements(ledger: Ledger, *, jobs: Jobs, settings: Settings, now: float) -> None:
    """Queue what the judge may begin.

    Nothing waits for it for too long, also where there is no judge any more: it would never be archived.
    """
    gone = judgements.expire(ledger.database, before=now - settings.judge.expire_s, now=now)
    if gone:
        log.warning(
            "answers waited for the judge for longer than judge.expire_s, and are not judged",
            extra={"action": "judge_expired", "count": gone},
        )
    if settings.judge.generator is not None:
        due = judgements.due(ledger.database, now=now, limit=MAX_JUDGE_JOBS)
        if due:
            jobs.enqueue_judge(due)
