"""Recovery loop: rings again for what waits and has no bell. Any process may run it at any time."""

import logging

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import Jobs
from ragbandit.router.storage import judgements
from ragbandit.router.storage.answer_queue import waiting_ids
from ragbandit.router.storage.rows.check_rows import expire_checks
from ragbandit.router.storage.sql.database import Database

log = logging.getLogger("ragbandit.recovery")

#: bells that one pass rings at most
LIMIT = 1000


def recover(database: Database, *, jobs: Jobs, settings: Settings, now: float) -> int:
    """Let the answer queue have as many bells as decisions wait, for workers and for autoscalers; how many it rang.

    Nothing waits for the judge or a check for too long, also where there is none any more.
    Raises StoreError, and QueueError if Redis cannot be reached: the next pass finds the same.
    """
    gone = judgements.expire(database, before=now - settings.judge.expire_s, now=now)
    if gone:
        log.warning(
            "answers waited for the judge for longer than judge.expire_s, and are not judged",
            extra={"action": "judge_expired", "count": gone},
        )
    if gone := expire_checks(database, now=now):
        message = "answers waited for reward.check for too long or were tried too often, and are not checked"
        log.warning(message, extra={"action": "check_expired", "count": gone})
    silent = waiting_ids(database, limit=LIMIT)[jobs.depth()["answer"] :]
    jobs.enqueue_answers(silent)
    return len(silent)
