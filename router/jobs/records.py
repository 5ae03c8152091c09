"""Job records: what is queued in Redis, in RQ's layout, written and read without trusting whoever else writes there.

Whoever can write to Redis can queue anything, and RQ's own worker imports the function that a record names, unpickles
its arguments and calls its callbacks. Here a job has one of three names and one string as argument, in JSON. Of a
record only `data` is read, up to MAX_BYTES; anything else is a RefusedJob, removed and never imported, unpickled or
called.

A record is there exactly while its job waits in the list: it is made with the entry of the list and removed by the
worker that takes it. Every step is one script, whose cost does not depend on the length of the list.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

__all__ = [
    "ANSWER_JOB",
    "ANSWER_QUEUE",
    "JOB_OF_QUEUE",
    "JUDGE_JOB",
    "JUDGE_QUEUE",
    "LEARN_JOB",
    "LEARN_QUEUE",
    "REFUSED_KEY",
    "RefusedJob",
    "TakenJob",
    "queue_on",
    "read_job",
    "record_of",
    "running_key",
    "take",
    "taken_key",
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
#: counts what was taken from a queue and was none of our jobs
REFUSED_KEY = "ragbandit:refused-jobs"
#: largest `data` of a record that is read, bytes, compressed and not
MAX_BYTES = 4096
#: characters of something unknown that a log line shows
SHOWN = 80
#: a job that was taken begins within this long, milliseconds; until then nobody queues it again
TAKEN_MS = 5_000
#: fields of RQ's records that are kept: those that its own tools show
_FIELDS = ("data", "origin", "status", "created_at", "enqueued_at", "timeout")

#: KEYS: record, mark of a job that was taken. ARGV: MAX_BYTES, TAKEN_MS. The record's data, '' for a strange record
_TAKE = """
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'none' then
    return false
end
local data = ''
if kind == 'hash' and redis.call('HSTRLEN', KEYS[1], 'data') <= tonumber(ARGV[1]) then
    data = redis.call('HGET', KEYS[1], 'data') or ''
end
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
return data
"""


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


def take(client: "redis.Redis", queue: str, *, timeout_s: int | None) -> TakenJob | RefusedJob | None:
    """Take the first job of this queue; None if none came within timeout_s (None: at once). Raises RedisError.

    An entry whose record is gone is passed over: its job was queued twice, and the first entry has been taken.
    """
    key = Queue(queue, connection=client).key
    while True:
        raw = _first(client, key, timeout_s=timeout_s)
        if raw is None:
            return None
        name = raw.decode("utf-8", "backslashreplace")
        # The key is made of the raw bytes: a strange id is removed too.
        record = Job.redis_job_namespace_prefix.encode() + raw
        data = client.eval(_TAKE, 2, record, taken_key(name[:SHOWN]), MAX_BYTES, TAKEN_MS)
        if data is not None:
            return read_job(data, queue=queue, job_id=name)


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


def running_key(decision_id: str) -> str:
    """The key that says that a worker is running this decision."""
    return f"ragbandit:running:{decision_id}"


def taken_key(decision_id: str) -> str:
    """The key that says that a worker has taken this job and is about to run it."""
    return f"ragbandit:taken:{decision_id}"
