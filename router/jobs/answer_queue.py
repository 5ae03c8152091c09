"""Answer queue: the decisions that wait for a worker, one entry in the list and one record each.

Adding, moving and looking for lost ones cost the same however long the queue is. Records are numbered in the order in
which they came, and workers take from the front. So what has a lower number than the front of the list, and still has
its record, is no longer in the list: its worker died before it began, or the list was lost.
"""

import logging
import time
from collections.abc import Iterable
from typing import Any

import redis
from rq.job import Job

from ragbandit.router.jobs.records import ANSWER_QUEUE, queue_on, record_of, running_key, taken_key
from ragbandit.router.types import DecisionId

__all__ = ["MAX_QUEUED", "AnswerQueue"]

log = logging.getLogger("ragbandit.jobs")

#: decisions in the list at once, unless the settings say otherwise; further ones wait in the database
MAX_QUEUED = 100_000
#: a record is kept that long; a decision that waits longer is found missing and queued again
RECORD_S = 86_400
#: entries at the front that are looked at for one whose number counts; longest list in which a moved entry is taken out
NEAR = 1000
#: least time between two log lines about a full queue, seconds
QUIET_S = 30.0
_ORDER_KEY = "ragbandit:answer-order"

#: KEYS: list, record, running mark, taken mark, counter, RQ's set of queues. ARGV: id, most entries, seconds that the
#: record is kept, '1' if it was found missing, fields and values of the record. 1 queued, 0 there already, -1 no room
_ENQUEUE = """
if redis.call('EXISTS', KEYS[3], KEYS[4]) > 0 or (ARGV[4] == '0' and redis.call('EXISTS', KEYS[2]) > 0) then
    return 0
end
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[2]) then
    return -1
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'order', redis.call('INCR', KEYS[5]), unpack(ARGV, 5))
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('SADD', KEYS[6], KEYS[1])
redis.call('RPUSH', KEYS[1], ARGV[1])
return 1
"""
#: KEYS: list, record. ARGV: id, NEAR. In a long list the entry behind stays: it is passed over when its turn comes
_TO_FRONT = """
if redis.call('HEXISTS', KEYS[2], 'order') == 0 or redis.call('HSETNX', KEYS[2], 'front', 1) == 0 then
    return
end
if redis.call('LLEN', KEYS[1]) <= tonumber(ARGV[2]) and redis.call('LREM', KEYS[1], 0, ARGV[1]) == 0 then
    redis.call('HDEL', KEYS[2], 'front')
    return
end
redis.call('LPUSH', KEYS[1], ARGV[1])
"""
#: KEYS: list. ARGV: NEAR, prefixes of records, running marks and taken marks, ids. The ids that are missing
_MISSING = """
local function number(id)
    local found = redis.pcall('HMGET', ARGV[2] .. id, 'order', 'front')
    if found.err then
        return nil, nil
    end
    return tonumber(found[1] or nil), found[2]
end
local front = math.huge
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)) do
    front = 0
    local order, moved = number(id)
    if order and not moved then
        front = order
        break
    end
end
local missing = {}
for place = 5, #ARGV do
    local id = ARGV[place]
    if redis.call('EXISTS', ARGV[3] .. id, ARGV[4] .. id) == 0 then
        local order = number(id)
        if not order or order < front then
            missing[#missing + 1] = id
        end
    end
end
return missing
"""


class AnswerQueue:
    """The list of decisions that wait for a worker. Every method raises RedisError if Redis cannot be reached."""

    def __init__(self, client: "redis.Redis", *, max_queued: int = MAX_QUEUED) -> None:
        self._client = client
        self._queue = queue_on(client, ANSWER_QUEUE)
        self._max_queued = max_queued
        self._logged_at = -QUIET_S

    def enqueue(self, decision_id: DecisionId, *, timeout_s: float, missing: bool = False) -> None:
        """Queue the job under the decision's own id, unless it is queued or being run already.

        missing: as `missing` has just found; a record that is there is then replaced. Where the queue is full the
        decision stays in the database, and the recovery loop queues it when there is room.
        """
        record = record_of(self._queue, job_id=decision_id, argument=decision_id, timeout_s=int(timeout_s) + 30)
        keys = [
            self._queue.key,
            Job.key_for(decision_id),
            running_key(decision_id),
            taken_key(decision_id),
            _ORDER_KEY,
            self._queue.redis_queues_keys,
        ]
        fields = [part for pair in record.items() for part in pair]
        given = [decision_id, self._max_queued, RECORD_S, int(missing), *fields]
        if self._client.eval(_ENQUEUE, len(keys), *keys, *given) == -1:
            self._log_full()

    def move_to_front(self, decision_id: DecisionId) -> None:
        """Have its job taken next, unless a worker has taken it already."""
        self._client.eval(_TO_FRONT, 2, self._queue.key, Job.key_for(decision_id), decision_id, NEAR)

    def missing(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """Those that neither wait in the list nor are taken or run by a live worker."""
        wanted = list(ids)
        if not wanted:
            return []
        prefixes = [Job.redis_job_namespace_prefix, running_key(""), taken_key("")]
        found: Any = self._client.eval(_MISSING, 1, self._queue.key, NEAR, *prefixes, *wanted)
        return [DecisionId(key.decode()) for key in found]

    def _log_full(self) -> None:
        if time.monotonic() < self._logged_at + QUIET_S:
            return
        self._logged_at = time.monotonic()
        facts = {"action": "queue_full", "most": self._max_queued}
        log.warning("the answer queue is full; further decisions wait in the database until it has room", extra=facts)
