"""The workers in Redis: who is registered, on which queue, and how many jobs all of them have done.

Registrations are RQ's. The counts are ours, one hash of bounded size; when Redis forgets, they begin at 0 again.
What is neither RQ's nor ours is left out, and counted as foreign.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from ragbandit.router.jobs.foreign_data import ForeignData, is_foreign
from ragbandit.router.jobs.records import ANSWER_QUEUE, JUDGE_QUEUE, LEARN_QUEUE

if TYPE_CHECKING:
    import redis

__all__ = ["MOST_WORKERS", "QueueWork", "WorkerState", "count_job", "work_of", "workers_of"]

#: registrations that are read
MOST_WORKERS: Final = 500
_REGISTERED: Final = "rq:workers"
_FIELDS: Final = ("queues", "state", "hostname", "pid", "last_heartbeat")
_NAMES: Final = {ANSWER_QUEUE: "answer", JUDGE_QUEUE: "judge", LEARN_QUEUE: "learn"}
_WORKER: Final = "rq:worker:"
#: longest text of a registration that is shown, characters
_MAX_SHOWN: Final = 200
#: hash of what all workers together have done, by queue and kind
_WORK_KEY: Final = "ragbandit:work"
_COUNTED: Final = ("done", "failed", "seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """A thread of a worker process that takes jobs of one queue."""

    name: str
    #: answer, judge or learn
    queue: str
    #: RQ's word: idle, busy, started, suspended
    state: str
    host: str
    pid: int | None
    #: when it was heard last, seconds since the epoch; None: never
    heard_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueWork:
    """What all workers of a queue have done since this Redis has been counting."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0


def count_job(client: "redis.Redis", queue: str, *, seconds: float, failed: bool, worker_key: str) -> None:
    """A worker has done a job of this RQ queue, and is idle. Counts that somebody else has changed begin anew."""
    name = _NAMES.get(queue, "other")
    with client.pipeline(transaction=False) as pipeline:
        pipeline.hset(worker_key, "state", "idle")
        _add_counts(pipeline, name, seconds=seconds, failed=failed)
        _, *counted = pipeline.execute(raise_on_error=False)
        refused = [reply for reply in counted if isinstance(reply, ResponseError)]
        for error in refused:
            if not is_foreign(error):
                raise error
        if refused:
            pipeline.delete(_WORK_KEY)
            _add_counts(pipeline, name, seconds=seconds, failed=failed)
            pipeline.execute()


def _add_counts(pipeline: Any, name: str, *, seconds: float, failed: bool) -> None:
    pipeline.hincrby(_WORK_KEY, f"{name}:{'failed' if failed else 'done'}", 1)
    pipeline.hincrbyfloat(_WORK_KEY, f"{name}:seconds", seconds)


def work_of(client: "redis.Redis", *, foreign: ForeignData) -> dict[str, QueueWork]:
    """Queue -> what its workers have done; what is not a count is 0."""
    names = [(name, counted) for name in _NAMES.values() for counted in _COUNTED]
    try:
        values: Any = client.hmget(_WORK_KEY, [f"{name}:{counted}" for name, counted in names])
    except ResponseError as error:
        foreign.add_error("counters", error)
        values = [None] * len(names)
    row = {key: foreign.number("counters", value) for key, value in zip(names, values, strict=True)}
    return {
        name: QueueWork(done=int(row[name, "done"]), failed=int(row[name, "failed"]), seconds=row[name, "seconds"])
        for name in _NAMES.values()
    }


def workers_of(client: "redis.Redis", *, foreign: ForeignData) -> list[WorkerState]:
    """The registered workers, by queue and name; those that were forgotten by Redis are left out."""
    keys = _registered(client, foreign=foreign)
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hmget(key, list(_FIELDS))
        replies = pipeline.execute(raise_on_error=False) if keys else []
    registered = []
    for key, reply in zip(keys, replies, strict=True):
        if isinstance(reply, Exception):
            foreign.add_error("workers", reply)
        elif any(value is not None for value in reply):
            registered.append(_worker(key, dict(zip(_FIELDS, map(_text, reply), strict=True))))
    return sorted(registered, key=lambda one: (one.queue, one.name))


def _registered(client: "redis.Redis", *, foreign: ForeignData) -> list[str]:
    """Keys of the registrations, MOST_WORKERS at most."""
    keys: list[str] = []
    try:
        members: Any = client.sscan_iter(_REGISTERED, count=MOST_WORKERS)
        for member in members:
            key = _text(member)
            if key.startswith(_WORKER) and key.encode() == member:
                keys.append(key)
            else:
                foreign.add("workers", f"{member[:40]!r} is not a worker")
            if len(keys) == MOST_WORKERS:
                break
    except ResponseError as error:
        foreign.add_error("workers", error)
    return keys


def _worker(key: str, row: Mapping[str, str]) -> WorkerState:
    return WorkerState(
        name=key.removeprefix(_WORKER),
        queue=_NAMES.get(row["queues"], "other"),
        state=row["state"] or "unknown",
        host=row["hostname"],
        pid=int(row["pid"]) if row["pid"].isdecimal() else None,
        heard_at=_time(row["last_heartbeat"]),
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value))[:_MAX_SHOWN]


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # no time, or one that no clock shows
        return None
