"""Answer queue: the decisions that wait for a worker. Tenants take turns; within a tenant the oldest comes first.

A sorted set holds the order, by start-time fair queueing with one unit a decision (Goyal, Vin and Cheng 1997): a new
decision gets the turn after its tenant's last one, or after the turn that was taken last, whichever is later. So a
tenant with a thousand decisions delays the first one of another by one. Beside it stands RQ's list with one entry for
each decision: workers wait for an entry, autoscalers read its length, and which decision is taken the order says.

Every step is one script, whose cost grows with the logarithm of the length at most.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

import redis
from rq.job import Job

from ragbandit.router.jobs.foreign_data import ForeignData, OwnKeys
from ragbandit.router.jobs.records import (
    ANSWER_QUEUE,
    ORDER_KEY,
    RUNS_KEY,
    TURN_TYPES,
    queue_on,
    record_of,
)
from ragbandit.router.telemetry.throttle import Throttle
from ragbandit.router.types import DecisionId

__all__ = ["MAX_QUEUED", "RECORD_S", "AnswerQueue"]

log = logging.getLogger("ragbandit.jobs")

#: decisions in the queue at once, unless the settings say otherwise; further ones wait in the database
MAX_QUEUED = 100_000
#: a record is kept that long; a decision that waits longer is found missing and queued again
RECORD_S = 86_400
#: least time between two log lines about a full queue, seconds
QUIET_S = 30.0

#: a number that somebody else wrote may be anything; turns are whole numbers that a double holds exactly
_NUMBER: Final = """
local function number(text)
    local value = tonumber(text or nil)
    if value and value >= -9e15 and value <= 9e15 then
        return value
    end
    return 0
end
"""
#: KEYS: list, order, turns, leases, RQ's set of queues, record. ARGV: id, most decisions, seconds that the record is
#: kept, '1' for the front, key of the dead process that holds the lease or '', tenant, fields of the record.
#: 1 queued, 0 there already, -1 no room
_ENQUEUE: Final = (
    _NUMBER
    + """
local holder = redis.call('HGET', KEYS[4], ARGV[1])
if holder and holder ~= ARGV[5] then
    return 0
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local front = number(first[2]) - 1
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then
    if ARGV[4] == '1' and first[1] ~= ARGV[1] then
        redis.call('ZADD', KEYS[2], front, ARGV[1])
    end
    return 0
end
if not holder and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[2]) then
    return -1
end
local turn = front
if ARGV[4] == '0' then
    local taken, last = redis.call('HGET', KEYS[3], 'taken'), redis.call('HGET', KEYS[3], 'last:' .. ARGV[6])
    turn = math.max(number(taken), number(last)) + 1
end
redis.call('SADD', KEYS[5], KEYS[1])
redis.call('RPUSH', KEYS[1], ARGV[1])
if ARGV[4] == '0' then
    redis.call('HSET', KEYS[3], 'last:' .. ARGV[6], turn)
end
redis.call('ZADD', KEYS[2], turn, ARGV[1])
redis.call('DEL', KEYS[6])
redis.call('HSET', KEYS[6], 'tenant', ARGV[6], unpack(ARGV, 7))
redis.call('EXPIRE', KEYS[6], ARGV[3])
redis.call('HDEL', KEYS[4], ARGV[1])
return 1
"""
)
#: KEYS: order, leases. ARGV: ids. Those that are in neither
_MISSING: Final = """
local missing = {}
for _, id in ipairs(ARGV) do
    if not redis.call('ZSCORE', KEYS[1], id) and redis.call('HEXISTS', KEYS[2], id) == 0 then
        missing[#missing + 1] = id
    end
end
return missing
"""


class AnswerQueue:
    """The decisions that wait for a worker. Every method raises RedisError if Redis cannot be reached."""

    def __init__(self, client: "redis.Redis", *, foreign: ForeignData, max_queued: int = MAX_QUEUED) -> None:
        self._client = client
        self._queue = queue_on(client, ANSWER_QUEUE)
        self._max_queued = max_queued
        self._throttle = Throttle(QUIET_S)
        self._types = {
            self._queue.key: "list",
            **TURN_TYPES,
            self._queue.redis_queues_keys: "set",
        }
        self._own = OwnKeys(client, self._types, foreign=foreign)

    def enqueue(
        self, decision_id: DecisionId, *, tenant: str, timeout_s: float, front: bool = False, lost_by: str = ""
    ) -> None:
        """Queue the job under the decision's own id, unless it is queued or being run already.

        front: to be taken next, also if it is queued already. lost_by: key of the dead process in the decision's
        lease, which goes with this. Where the queue is full the decision stays in the database, and the recovery loop
        queues it when there is room; one that was lost had its place already.
        """
        record = record_of(self._queue, job_id=decision_id, argument=decision_id, timeout_s=int(timeout_s) + 30)
        keys = [*self._types, Job.key_for(decision_id)]
        fields = [part for pair in record.items() for part in pair]
        given = [decision_id, self._max_queued, RECORD_S, int(front), lost_by, tenant, *fields]
        if self._evaluated(_ENQUEUE, keys, given) == -1:
            self._log_full()

    def missing(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """Those that are neither queued nor run by anybody."""
        wanted = list(ids)
        if not wanted:
            return []
        replied: Any = self._evaluated(_MISSING, [ORDER_KEY, RUNS_KEY], wanted)
        return [DecisionId(key.decode()) for key in replied]

    def _evaluated(self, script: str, keys: list[Any], given: list[Any]) -> Any:
        return self._own.attempt(lambda: self._client.eval(script, len(keys), *keys, *given))

    def _log_full(self) -> None:
        if not self._throttle.lets_pass():
            return
        facts = {"action": "queue_full", "most": self._max_queued}
        log.warning("the answer queue is full; further decisions wait in the database until it has room", extra=facts)
