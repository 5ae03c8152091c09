"""The sweep: finds in SQL what a lost bell left lying, and rings again. Any process may sweep at any time."""

import logging
from dataclasses import dataclass

from ragbandit.router.config.settings import Settings
from ragbandit.router.jobs.queue import Jobs
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.storage.ledger import Ledger

__all__ = ["Swept", "sweep"]

log = logging.getLogger("ragbandit.sweep")

#: decisions queued again in one sweep
LIMIT = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """What one sweep found."""

    #: something was ready to learn, so the bell was rung
    rung: bool
    #: unanswered decisions that no queue and no worker had
    requeued: int


def sweep(ledger: Ledger, *, jobs: Jobs, settings: Settings, now: float) -> Swept:
    """Ring for what is ready to learn; queue unanswered decisions that are neither queued nor running.

    Raises QueueError if Redis is down: the next sweep finds the same.
    """
    ready = ledger.ready(closing_rule(settings.learning), now=now, limit=1)
    if ready:
        jobs.ring(ledger.label)
    lost = jobs.lost(ledger.unanswered(before=now - settings.workers.retry_after_s, limit=LIMIT))
    for decision_id in lost:
        jobs.ask_answer(decision_id, timeout_s=settings.budget.seconds)
    if lost:
        log.warning("unanswered decisions queued again", extra={"action": "requeue", "count": len(lost)})
    return Swept(rung=bool(ready), requeued=len(lost))
