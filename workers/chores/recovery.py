"""Sends wake-ups that Redis has lost, and ends jobs that waited too long for a score."""

import logging
from typing import Final

from ragbandit.router.config.settings import JudgeSettings
from ragbandit.router.queue.notifier import Jobs
from ragbandit.router.storage import judgements
from ragbandit.router.storage.jobs.answers import waiting_ids
from ragbandit.router.storage.jobs.claims import ScoreKind
from ragbandit.router.storage.jobs.scores import CHECK_EXPIRE_S, LABEL_EXPIRE_S
from ragbandit.router.storage.label_queue import expire_items
from ragbandit.router.storage.sql.database import Database
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context

log = logging.getLogger("ragbandit.recovery")

#: maximum number of wake-ups that one pass sends
LIMIT: Final = 1000


class LostWakeUps(Chore):
    title = "look for unfinished decisions"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.every_s = context.settings.workers.sweep_interval_s

    def do(self) -> None:
        context = self.context
        now = context.deadlines.for_deletion()
        recover(context.store.database, jobs=context.jobs, settings=context.settings.judge, now=now)


def recover(database: Database, *, jobs: Jobs, settings: JudgeSettings, now: float) -> int:
    """Send missing wake-ups, so that Redis has one per waiting decision, and delete jobs that waited too long.

    Returns the number of sent wake-ups. Raises StoreError, and QueueError if Redis cannot be reached.
    """
    expiry: dict[ScoreKind, float] = {"judge": settings.expire_s, "check": CHECK_EXPIRE_S, "label": LABEL_EXPIRE_S}
    for kind, expire_s in expiry.items():
        before = now - expire_s
        if kind == "label":
            expired = expire_items(database, before=before, now=now)
        else:
            expired = judgements.expire(database, kind=kind, before=before, now=now)
        if expired:
            message = "answers waited for %s for longer than %.0f s, and get no score"
            log.warning(message, kind, expire_s, extra={"action": f"{kind}_expired", "count": expired})
    without_wake_up = waiting_ids(database, limit=LIMIT)[jobs.depth()["answer"] :]
    jobs.enqueue_answers(without_wake_up)
    return len(without_wake_up)
