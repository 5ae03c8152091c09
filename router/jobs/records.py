"""Job records: what is queued in Redis, in RQ's layout, written and read without trusting whoever else writes there.

Whoever can write to Redis can queue anything, and RQ's own worker imports the function that a record names, unpickles
its arguments and calls its callbacks. Here a job has one of three names and one string as argument, in JSON. Of a
record only `data` is read, up to MAX_BYTES; anything else is a RefusedJob, removed and never imported, unpickled or
called.

A record is there exactly while its job waits in the queue: it is made with the entry of the list and removed by the
worker that takes it. Every step is one script, whose cost hardly depends on the length of the queue. Which answer is
taken is said by the order of the answer queue (answer_queue.py), not by the list.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from ragbandit.router.jobs.foreign_data import ForeignData, OwnKeys

__all__ = [
    "ANSWER_JOB",
    "ANSWER_QUEUE",
    "JOB_OF_QUEUE",
    "JUDGE_JOB",
    "JUDGE_QUEUE",
    "LEARN_JOB",
    "LEARN_QUEUE",
    "ORDER_KEY",
    "REFUSED_KEY",
    "RUNS_KEY",
    "TURNS_KEY",
    "TURN_TYPES",
    "RefusedJob",
    "TakenJob",
    "queue_on",
    "read_job",
    "record_of",
    "take",
]

# Names of queues and keys in Redis stay as they are: what one release has queued must be found by the next.
ANSWER_QUEUE = "ragbandit-answer"
LEARN_QUEUE = "ragbandit-learn"
JUDGE_QUEUE = "ragbandit-judge"
#: names of the jobs, not paths of functions: what is queued outlives a release
ANSWER_JOB = "workers.tasks.answer"
LEARN_JOB = "workers.tasks.learn"
JUDGE_JOB = "workers.tasks.judge"
#: queue -> the one job that may stand in it
JOB_OF_QUEUE: Final = {ANSWER_QUEUE: ANSWER_JOB, LEARN_QUEUE: LEARN_JOB, JUDGE_QUEUE: JUDGE_JOB}
#: sorted set: the decisions that wait for a worker, by turn
ORDER_KEY: Final = "ragbandit:answer-turns"
#: hash: "taken" -> the turn that was taken last, "last:TENANT" -> the last turn of a tenant that has decisions waiting
TURNS_KEY: Final = "ragbandit:answer-tenants"
#: hash: decision -> key of the process that runs it (run_leases.py)
RUNS_KEY: Final = "ragbandit:running"
#: the types of these
TURN_TYPES: Final = {ORDER_KEY: "zset", TURNS_KEY: "hash", RUNS_KEY: "hash"}
#: counts what was taken from a queue and was none of our jobs
REFUSED_KEY = "ragbandit:refused-jobs"
#: largest `data` of a record that is read, bytes, compressed and not
MAX_BYTES = 4096
#: characters of something unknown that a log line shows
SHOWN = 80
#: entries of the order without a record that one take passes over at most
MAX_PASSED = 1000
#: fields of RQ's records that are kept: those that its own tools show
_FIELDS = ("data", "origin", "status", "created_at", "enqueued_at", "timeout")

#: the data of a record, which is removed; '' for a strange one, false for none
_DATA: Final = """
local function data_of(record)
    local kind, data = redis.call('TYPE', record)['ok'], ''
    if kind == 'none' then
        return false
    end
    if kind == 'hash' and redis.call('HSTRLEN', record, 'data') <= tonumber(ARGV[1]) then
        data = redis.call('HGET', record, 'data') or ''
    end
    redis.call('UNLINK', record)
    return data
end
"""
#: KEYS: record. ARGV: MAX_BYTES
_TAKE: Final = _DATA + "return data_of(KEYS[1])"
#: KEYS: order, turns, leases. ARGV: MAX_BYTES, prefix of records, the entry, key of this process, MAX_PASSED.
#: An entry that has a record and no turn is a stranger's, or another release's. The id and the record's data
_TAKE_ANSWER: Final = (
    _DATA
    + """
-- A key of another type fails here, before anything is taken out.
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])
local id, turn = ARGV[3], false
if redis.call('ZSCORE', KEYS[1], id) or redis.call('EXISTS', ARGV[2] .. id) == 0 then
    id = false
    for _ = 1, ARGV[5] do
        local first = redis.call('ZPOPMIN', KEYS[1])
        if not first[1] then
            return false
        end
        if redis.call('EXISTS', ARGV[2] .. first[1]) == 1 then
            id, turn = first[1], first[2]
            break
        end
    end
    if not id then
        return false
    end
end
local tenant = turn and redis.pcall('HGET', ARGV[2] .. id, 'tenant')
if type(tenant) == 'string' then
    if tonumber(redis.call('HGET', KEYS[2], 'last:' .. tenant) or nil) == tonumber(turn) then
        redis.call('HDEL', KEYS[2], 'last:' .. tenant)
    end
    local taken = tonumber(redis.call('HGET', KEYS[2], 'taken') or nil)
    if not (taken and taken >= tonumber(turn) and taken <= 9e15) then
        redis.call('HSET', KEYS[2], 'taken', turn)
    end
end
if redis.call('ZCARD', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[2])
end
local data = data_of(ARGV[2] .. id)
redis.call('HSETNX', KEYS[3], id, ARGV[4])
return {id, data}
"""
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenJob:
    """A job that was taken from its queue."""

    queue: str
    id: str
    name: str
    argument: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedJob:
    """Something that was taken from a queue and is none of our jobs."""

    queue: str
    id: str
    #: ours to print: what is quoted in it is cut to SHOWN characters
    reason: str


def queue_on(client: "redis.Redis", name: str) -> Queue:
    """RQ's queue of this name, with arguments in JSON."""
    return Queue(name, connection=client, serializer=JSONSerializer)


def record_of(queue: Queue, *, job_id: str, argument: str, timeout_s: int) -> dict[str, Any]:
    """The record of a job of this queue, as RQ writes it."""
    job = queue.create_job(
        JOB_OF_QUEUE[queue.name], args=(argument,), job_id=job_id, timeout=timeout_s, status="queued"
    )
    job.origin, job.enqueued_at = queue.name, job.created_at
    fields = job.to_dict(include_meta=False)
    return {name: fields[name] for name in _FIELDS if fields.get(name) is not None}


def take(
    client: "redis.Redis", queue: str, *, timeout_s: int | None, process: str = "", foreign: ForeignData | None = None
) -> TakenJob | RefusedJob | None:
    """Take the next job of this queue; None if none came within timeout_s (None: at once). Raises RedisError.

    process: key of the process that takes it, which from now on holds the lease of an answer. foreign: counts keys of
    another type, which are deleted. An entry whose record is gone is passed over: its job was queued twice, or taken by
    an earlier entry.
    """
    foreign = foreign or ForeignData()
    key = Queue(queue, connection=client).key
    own_list, own_turns = OwnKeys(client, {key: "list"}, foreign=foreign), OwnKeys(client, TURN_TYPES, foreign=foreign)
    while True:
        entry = own_list.attempt(lambda: _first(client, key, timeout_s=timeout_s))
        if queue == ANSWER_QUEUE:
            # Also where no entry came: the list may have lost what the order has.
            taken = _take_answer(client, entry or b"", process=process, own=own_turns)
        else:
            taken = None if entry is None else _take_entry(client, entry)
        if taken is not None:
            raw, data = taken
            job = read_job(data, queue=queue, job_id=raw.decode("utf-8", "backslashreplace"))
            if queue == ANSWER_QUEUE and isinstance(job, RefusedJob):
                client.hdel(RUNS_KEY, raw)
            return job
        if entry is None:
            return None


def _take_answer(client: "redis.Redis", entry: bytes, *, process: str, own: OwnKeys) -> tuple[bytes, bytes] | None:
    """Id and record of the decision whose turn it is; None: nothing waits."""
    given = [MAX_BYTES, Job.redis_job_namespace_prefix, entry, process, MAX_PASSED]
    taken: Any = own.attempt(lambda: client.eval(_TAKE_ANSWER, len(TURN_TYPES), *TURN_TYPES, *given))
    return taken and (taken[0], taken[1])


def _take_entry(client: "redis.Redis", entry: bytes) -> tuple[bytes, bytes] | None:
    """The entry and its record; None: its record is gone. Strange ids are removed too: the key is made of raw bytes."""
    data: Any = client.eval(_TAKE, 1, Job.redis_job_namespace_prefix.encode() + entry, MAX_BYTES)
    return None if data is None else (entry, data)


def _first(client: "redis.Redis", key: str, *, timeout_s: int | None) -> bytes | None:
    entry: bytes | None
    if timeout_s is None:
        entry = client.lpop(key)  # type: ignore[assignment] # redis types replies for all clients at once
    else:
        popped: Any = client.blpop([key], timeout_s)
        entry = popped and popped[1]
    return entry


def read_job(data: bytes, *, queue: str, job_id: str) -> TakenJob | RefusedJob:
    """The job of a record's data, if it is the one of this queue with one string as argument."""
    try:
        name, instance, args, kwargs = json.loads(_decompressed(data))
    except (ValueError, TypeError, RecursionError, zlib.error):
        reason = "its data is no JSON of a job (jobs of release 0.1 are none; the database queues those again)"
        return RefusedJob(queue=queue, id=job_id[:SHOWN], reason=reason)
    if name != JOB_OF_QUEUE[queue]:
        return RefusedJob(queue=queue, id=job_id[:SHOWN], reason=f"{str(name)[:SHOWN]!r} is no job of this queue")
    if instance is not None or kwargs or not (isinstance(args, list) and len(args) == 1 and isinstance(args[0], str)):
        return RefusedJob(queue=queue, id=job_id[:SHOWN], reason="its argument is not one string")
    if queue == ANSWER_QUEUE and args[0] != job_id:
        return RefusedJob(queue=queue, id=job_id[:SHOWN], reason="its argument is another id than its own")
    return TakenJob(queue=queue, id=job_id, name=name, argument=args[0])


def _decompressed(data: bytes) -> bytes:
    """RQ compresses; a record that says little and becomes much is cut off, and is no JSON then."""
    try:
        return zlib.decompressobj().decompress(data, MAX_BYTES)
    except zlib.error:
        return data
