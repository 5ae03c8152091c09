"""Learn queue: one job for every ledger of which there is something to learn, and what a learner says of its store."""

import uuid
from typing import Any, Final

import redis
from redis.exceptions import ResponseError
from rq.job import Job

from ragbandit.router.jobs.foreign_data import ForeignData, OwnKeys
from ragbandit.router.jobs.records import LEARN_QUEUE, queue_on, record_of
from ragbandit.router.types import PolicyLabel

__all__ = ["LEARNER_FAULT_S", "LearnQueue"]

#: a notification of the learner that nobody has taken may be repeated after this long
NOTIFICATION_MS: Final = 2_000
#: learn jobs that may wait: one for every ledger
MAX_LEARN_JOBS: Final = 1000
#: what a learner said of a store that fails is known that long, seconds; it tries more often than that
LEARNER_FAULT_S: Final = 60
#: longest text of that, characters
MAX_FAULT_CHARS: Final = 1000
#: the record of a learn job is kept that long, seconds
LEARN_RECORD_S: Final = 3600
#: KEYS: notification, list, record, RQ's set of queues. ARGV: how long the notification stands, prefix of the ledger's
#: jobs, MAX_LEARN_JOBS, id, seconds that the record is kept, fields and values of the record. A notification that
#: stands for longer is not ours: it would silence the learner
_ENQUEUE: Final = """
local stands = redis.call('PTTL', KEYS[1])
if stands >= 0 and stands <= tonumber(ARGV[1]) then
    return
end
local waiting = redis.call('LRANGE', KEYS[2], 0, ARGV[3] - 1)
redis.call('SADD', KEYS[4], KEYS[2])
redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])
for _, id in ipairs(waiting) do
    if string.sub(id, 1, #ARGV[2]) == ARGV[2] then
        return
    end
end
if #waiting < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[3], unpack(ARGV, 6))
    redis.call('EXPIRE', KEYS[3], ARGV[5])
    redis.call('RPUSH', KEYS[2], ARGV[4])
end
"""


class LearnQueue:
    """The list of ledgers that wait for their learner. Every method raises RedisError if Redis cannot be reached."""

    def __init__(self, client: "redis.Redis", *, foreign: ForeignData) -> None:
        self._client = client
        self._foreign = foreign
        self._queue = queue_on(client, LEARN_QUEUE)
        types = {self._queue.key: "list", self._queue.redis_queues_keys: "set"}
        self._own = OwnKeys(client, types, foreign=foreign)

    def enqueue(self, label: PolicyLabel) -> None:
        """Queue one job unless one is queued; the notification expires, a job that nobody has taken yet stays."""
        prefix = f"learn-{label}-"
        job_id = f"{prefix}{uuid.uuid4().hex}"
        record = record_of(self._queue, job_id=job_id, argument=label, timeout_s=600)
        keys = [_notification_key(label), self._queue.key, Job.key_for(job_id), self._queue.redis_queues_keys]
        fields = [part for pair in record.items() for part in pair]
        given = [NOTIFICATION_MS, prefix, MAX_LEARN_JOBS, job_id, LEARN_RECORD_S, *fields]
        self._own.attempt(lambda: self._client.eval(_ENQUEUE, len(keys), *keys, *given))

    def clear_notification(self, label: PolicyLabel) -> None:
        """Have the next `enqueue` queue a job again."""
        self._client.delete(_notification_key(label))

    def set_fault(self, label: PolicyLabel, reason: str | None) -> None:
        """Keep why this ledger cannot be learned for LEARNER_FAULT_S; None: it can."""
        if reason is None:
            self._client.delete(_fault_key(label))
        else:
            self._client.set(_fault_key(label), reason[:MAX_FAULT_CHARS], ex=LEARNER_FAULT_S)

    def fault(self, label: PolicyLabel) -> str | None:
        """What its learner said within LEARNER_FAULT_S; None: nothing, or something that no learner wrote."""
        try:
            said: Any = self._client.getrange(_fault_key(label), 0, 4 * MAX_FAULT_CHARS)
            return said.decode()[:MAX_FAULT_CHARS] or None
        except UnicodeDecodeError:
            self._foreign.add("faults", "what a learner said is not UTF-8")
        except ResponseError as error:
            self._foreign.add_error("faults", error)
        return None


def _notification_key(label: str) -> str:
    return f"ragbandit:bell:{label}"


def _fault_key(label: str) -> str:
    return f"ragbandit:learner_fault:{label}"
