"""The workers in Redis: who is registered, on which queue, and how many jobs all of them have done.

Registrations are RQ's. The counts are ours, one hash of bounded size; when Redis forgets, they begin at 0 again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ragbandit.router.jobs.records import ANSWER_QUEUE, JUDGE_QUEUE, LEARN_QUEUE

if TYPE_CHECKING:
    import redis

__all__ = ["MOST_WORKERS", "QueueWork", "WorkerState", "count_job", "work_of", "workers_of"]

#: registrations that are read
MOST_WORKERS: Final = 500
_REGISTERED: Final = "rq:workers"
_FIELDS: Final = ("queues", "state", "hostname", "pid", "last_heartbeat")
_NAMES: Final = {ANSWER_QUEUE: "answer", JUDGE_QUEUE: "judge", LEARN_QUEUE: "learn"}
#: hash of what all workers together have done, by queue and kind
_WORK_KEY: Final = "ragbandit:work"


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
    """A worker has done a job of this RQ queue, and is idle."""
    name = _NAMES.get(queue, "other")
    with client.pipeline(transaction=False) as pipeline:
        pipeline.hincrby(_WORK_KEY, f"{name}:{'failed' if failed else 'done'}", 1)
        pipeline.hincrbyfloat(_WORK_KEY, f"{name}:seconds", seconds)
        pipeline.hset(worker_key, "state", "idle")
        pipeline.execute()


def work_of(client: "redis.Redis") -> dict[str, QueueWork]:
    """Queue -> what its workers have done."""
    found: Any = client.hgetall(_WORK_KEY)
    row = {_text(name): float(value) for name, value in found.items()}
    return {
        name: QueueWork(
            done=int(row.get(f"{name}:done", 0)),
            failed=int(row.get(f"{name}:failed", 0)),
            seconds=row.get(f"{name}:seconds", 0.0),
        )
        for name in _NAMES.values()
    }


def workers_of(client: "redis.Redis") -> list[WorkerState]:
    """The registered workers, by queue and name; those that were forgotten by Redis are left out."""
    found: Any = client.sscan_iter(_REGISTERED, count=MOST_WORKERS)
    keys: list[str] = []
    for key in found:
        keys.append(_text(key))
        if len(keys) == MOST_WORKERS:
            break
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hmget(key, list(_FIELDS))
        replies = pipeline.execute() if keys else []
    made = [
        _worker(key, dict(zip(_FIELDS, map(_text, reply), strict=True)))
        for key, reply in zip(keys, replies, strict=True)
        if any(value is not None for value in reply)
    ]
    return sorted(made, key=lambda one: (one.queue, one.name))


def _worker(key: str, row: Mapping[str, str]) -> WorkerState:
    return WorkerState(
        name=key.removeprefix("rq:worker:"),
        queue=_NAMES.get(row["queues"], "other"),
        state=row["state"] or "unknown",
        host=row["hostname"],
        pid=int(row["pid"]) if row["pid"].isdecimal() else None,
        heard_at=_time(row["last_heartbeat"]),
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
