"""Judge queue: a notification for every decision that a judge may begin.

The database says what is due and who works on it (storage/judgements.py), so entries may be lost, and may come twice.
The recovery loop fills the list; what has no room in it waits in the database.
"""

from collections.abc import Sequence
from typing import Final

import redis
from rq.job import Job

from ragbandit.router.jobs.foreign_data import ForeignData, OwnKeys
from ragbandit.router.jobs.records import JUDGE_QUEUE, queue_on, record_of
from ragbandit.router.types import DecisionId

__all__ = ["MAX_JUDGE_JOBS", "JudgeQueue"]

#: entries in the list at once
MAX_JUDGE_JOBS: Final = 1000
#: a record is kept that long; after that the decision is queued again, and the first entry is passed over
_RECORD_S: Final = 600
#: RQ's limit of a job, which our threads do not have
_TIMEOUT_S: Final = 900

#: KEYS: list, record, RQ's set of queues. ARGV: id, most entries, seconds that the record is kept, its fields
_ENQUEUE: Final = """
if redis.call('EXISTS', KEYS[2]) > 0 or redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[2]) then
    return
end
redis.call('SADD', KEYS[3], KEYS[1])
redis.call('HSET', KEYS[2], unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('RPUSH', KEYS[1], ARGV[1])
"""


class JudgeQueue:
    """The list of decisions that a judge may begin. Every method raises RedisError if Redis cannot be reached."""

    def __init__(self, client: "redis.Redis", *, foreign: ForeignData) -> None:
        self._client = client
        self._queue = queue_on(client, JUDGE_QUEUE)
        types = {self._queue.key: "list", self._queue.redis_queues_keys: "set"}
        self._own = OwnKeys(client, types, foreign=foreign)

    def enqueue(self, ids: Sequence[DecisionId]) -> None:
        """Queue those that are not queued, as far as there is room."""
        self._own.attempt(lambda: self._enqueue(ids))

    def _enqueue(self, ids: Sequence[DecisionId]) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for decision_id in ids:
                job_id = f"judge-{decision_id}"  # the answer job of the decision has its own id
                record = record_of(self._queue, job_id=job_id, argument=decision_id, timeout_s=_TIMEOUT_S)
                keys = [self._queue.key, Job.key_for(job_id), self._queue.redis_queues_keys]
                fields = [part for pair in record.items() for part in pair]
                pipeline.eval(_ENQUEUE, len(keys), *keys, job_id, MAX_JUDGE_JOBS, _RECORD_S, *fields)
            pipeline.execute()
