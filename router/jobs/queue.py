"""Job queue: notifications of workers and learner through Redis and RQ. Losing Redis makes things late, not lost.

`Jobs` is the protocol, `RedisJobs` the real queue, `MemoryJobs` the public test double. A job carries the id of a
decision or the label of a ledger, never data. Workers are reached by job name, so that the router need not import them.
"""

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import redis
from redis.exceptions import RedisError
from rq import Queue
from rq.job import Job

from ragbandit.router.errors import QueueError
from ragbandit.router.jobs.listener import CHANNEL, Listener
from ragbandit.router.jobs.outage import Outage
from ragbandit.router.types import DecisionId, PolicyLabel

Reply = TypeVar("Reply")

__all__ = [
    "ANSWER_JOB",
    "ANSWER_QUEUE",
    "LEARN_JOB",
    "LEARN_QUEUE",
    "Jobs",
    "MemoryJobs",
    "RedisJobs",
    "Subscription",
    "connect",
]

# Names of queues and keys in Redis stay as they are: what one release has queued must be found by the next.
ANSWER_QUEUE = "ragbandit-answer"
LEARN_QUEUE = "ragbandit-learn"
#: names of the jobs, not paths of functions: what is queued outlives a release
ANSWER_JOB = "workers.tasks.answer"
LEARN_JOB = "workers.tasks.learn"
#: a notification of the learner that nobody has taken may be repeated after this long
NOTIFICATION_MS = 2_000
#: of requests for one answer that come within this long, one is queued
SAME_REQUEST_MS = 2_000
#: a worker says at least this often that it is still running a decision
RUNNING_S = 15
#: KEYS[1]: a queue, ARGV[1]: a job; one step, so that a worker takes it before or after, and never misses it
_TO_FRONT = """
if redis.call('LREM', KEYS[1], 0, ARGV[1]) > 0 then
    redis.call('LPUSH', KEYS[1], ARGV[1])
end
"""
#: KEYS[1]: a count of tries; one step, so that a try that begins meanwhile is not taken away with it
_TAKE_BACK = """
if redis.call('DECR', KEYS[1]) <= 0 then
    redis.call('DEL', KEYS[1])
end
"""


class Subscription(Protocol):
    """Notifications that arrive until it is closed."""

    def close(self) -> None:
        """Receive nothing more."""
        ...


class Jobs(Protocol):
    """The queue as the router needs it. All but `listen` and `close` raise QueueError if it cannot be reached."""

    #: whether it could be reached last
    outage: Outage

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Have the learner of this ledger learn."""
        ...

    def enqueue_answer(self, decision_id: DecisionId, *, timeout_s: float, missing: bool = False) -> None:
        """Have a worker answer this decision. missing: as `missing` has just found."""
        ...

    def move_to_front(self, decision_id: DecisionId) -> None:
        """Have the decision answered next, if it is queued."""
        ...

    def missing(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """The decisions among these that are neither queued nor being run."""
        ...

    def publish(self, notification: str) -> None:
        """Send a line to every listener: "outcome:<id>", "cancel:<id>" or "snapshot"."""
        ...

    def listen(self, handle: Callable[[str], None]) -> Subscription:
        """Call `handle` with every line that is published from now on, in a thread of its own."""
        ...

    def depth(self) -> dict[str, int]:
        """Jobs waiting, by queue."""
        ...

    def ping(self) -> None:
        """Do nothing but reach the queue, over a new connection."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def connect(url: str, *, timeout_s: float = 10.0) -> "redis.Redis":
    """A client that waits timeout_s at most for any reply."""
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=min(3.0, timeout_s),
        socket_timeout=timeout_s,
        health_check_interval=30,
        retry_on_timeout=False,
    )


class RedisJobs:
    """Jobs over RQ. expected: as of Outage."""

    def __init__(self, client: "redis.Redis", *, expected: bool = True) -> None:
        self.client = client
        self.outage = Outage(expected=expected)
        self._answer = Queue(ANSWER_QUEUE, connection=client)
        self._learn = Queue(LEARN_QUEUE, connection=client)

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Queue one learn job unless one is queued: feedback by the thousand makes one."""

        def work() -> None:
            # The key expires, a job that nobody has taken yet stays: one is enough. Each has an id of its own, since
            # RQ forgets a job under its id when it ends, also one that was queued under the same id meanwhile.
            if self.client.set(_notification_key(label), 1, nx=True, px=NOTIFICATION_MS):
                prefix = f"learn-{label}-"
                if not any(name.startswith(prefix) for name in self._learn.job_ids):
                    self._learn.enqueue(
                        LEARN_JOB,
                        label,
                        job_id=f"{prefix}{uuid.uuid4().hex}",
                        result_ttl=0,
                        failure_ttl=60,
                        job_timeout=600,
                    )

        self._reached(work)

    def clear_notification(self, label: PolicyLabel) -> None:
        """Have the next `enqueue_learn` queue a job again: what comes in from now on is not seen by this one."""
        self._reached(lambda: self.client.delete(_notification_key(label)))

    def enqueue_answer(self, decision_id: DecisionId, *, timeout_s: float, missing: bool = False) -> None:
        """Queue the answer job under the decision's own id, unless it is queued or being run already.

        A job has a record from being queued until its worker is done. That of a job whose worker died, or whose queue
        was lost, stays, and keeps the job from being queued until the recovery loop has found it `missing`.
        """

        def work() -> None:
            records = [_running_key(decision_id)] if missing else [_running_key(decision_id), Job.key_for(decision_id)]
            if self.client.exists(*records):
                return
            # Identical requests that come together have all come this far: one of them queues the job.
            if not self.client.set(_request_key(decision_id), 1, nx=True, px=SAME_REQUEST_MS):
                return
            self._answer.enqueue(
                ANSWER_JOB,
                decision_id,
                job_id=decision_id,
                result_ttl=0,
                failure_ttl=3600,
                job_timeout=int(timeout_s) + 30,
            )

        self._reached(work)

    def move_to_front(self, decision_id: DecisionId) -> None:
        """Move its job to where workers take the next one, unless one has taken it already."""
        self._reached(lambda: self.client.eval(_TO_FRONT, 1, self._answer.key, decision_id))

    def missing(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """Neither waiting in RQ's list nor marked as running by a live worker."""
        wanted = list(ids)
        if not wanted:
            return []

        def work() -> list[DecisionId]:
            queued = set(self._answer.job_ids)
            running = self.client.mget([_running_key(i) for i in wanted])
            return [i for i, mark in zip(wanted, running, strict=True) if mark is None and i not in queued]

        return self._reached(work)

    def begin_run(self, decision_id: DecisionId) -> int:
        """Mark the decision as running; how many workers have begun it before. The mark fades as of `mark_running`."""

        def work() -> int:
            with self.client.pipeline(transaction=False) as pipeline:
                pipeline.set(_running_key(decision_id), 1, ex=RUNNING_S)
                pipeline.get(_tries_key(decision_id))
                _, tries = pipeline.execute()
            return int(tries or 0)

        return self._reached(work)

    def end_run(self, decision_id: DecisionId, *, kept: bool) -> None:
        """Take the mark away. kept: its outcome is in the store, so its tries are forgotten and listeners notified."""

        def work() -> None:
            with self.client.pipeline(transaction=False) as pipeline:
                pipeline.delete(_running_key(decision_id), _request_key(decision_id))
                if kept:
                    pipeline.delete(_tries_key(decision_id))
                    pipeline.publish(CHANNEL, f"outcome:{decision_id}")
                pipeline.execute()

        self._reached(work)

    def mark_running(self, *ids: DecisionId) -> None:
        """A worker is running these; the marks fade after RUNNING_S unless renewed."""

        def work() -> None:
            with self.client.pipeline(transaction=False) as pipeline:
                for decision_id in ids:
                    pipeline.set(_running_key(decision_id), 1, ex=RUNNING_S)
                pipeline.execute()

        if ids:
            self._reached(work)

    def unmark_running(self, *ids: DecisionId) -> None:
        """No worker is running these."""
        if ids:
            self._reached(lambda: self.client.delete(*map(_running_key, ids)))

    def is_running(self, decision_id: DecisionId) -> bool:
        """True if a worker marked this as running within RUNNING_S."""
        return self._reached(lambda: bool(self.client.exists(_running_key(decision_id))))

    def claim_recovery(self, label: PolicyLabel, *, for_s: float) -> bool:
        """True if this process is the first to claim a pass of the recovery loop within so many seconds."""
        key, milliseconds = f"ragbandit:recovery:{label}", max(1, int(1000 * for_s))
        return self._reached(lambda: bool(self.client.set(key, 1, nx=True, px=milliseconds)))

    def count_try(self, decision_id: DecisionId) -> int:
        """A worker begins: how many have begun so far, this one included. Kept for a day."""

        def work() -> int:
            with self.client.pipeline() as pipeline:
                pipeline.incr(_tries_key(decision_id))
                pipeline.expire(_tries_key(decision_id), 86_400)
                tries, _ = pipeline.execute()
            return int(tries)

        return self._reached(work)

    def uncount_try(self, decision_id: DecisionId) -> None:
        """Take one try back: its end says nothing against the question."""
        self._reached(lambda: self.client.eval(_TAKE_BACK, 1, _tries_key(decision_id)))

    def publish(self, notification: str) -> None:
        """Publish on the one channel."""
        self._reached(lambda: self.client.publish(CHANNEL, notification))

    def listen(self, handle: Callable[[str], None]) -> Listener:
        """A thread that listens on the one channel."""
        return Listener(self.client, handle, outage=self.outage)

    def depth(self) -> dict[str, int]:
        """Length of the two lists."""
        return self._reached(lambda: {"answer": self._answer.count, "learn": self._learn.count})

    def ping(self) -> None:
        """Raises QueueError if Redis does not answer on a new connection.

        One that is open already may lead to a server whose address is gone, or belongs to another server by now.
        """
        pool = self.client.connection_pool
        fresh = type(pool)(pool.connection_class, **pool.connection_kwargs)
        try:
            redis.Redis(connection_pool=fresh).ping()
        except (RedisError, OSError) as error:
            raise _unreachable(error) from error
        finally:
            fresh.disconnect()

    def close(self) -> None:
        """Close all connections."""
        self.client.close()

    def _reached(self, work: Callable[[], Reply]) -> Reply:
        began = time.monotonic()
        try:
            reply = work()
        except (RedisError, OSError) as error:
            self.outage.failed(error)
            raise _unreachable(error) from error
        self.outage.reached(began=began)
        return reply


def _unreachable(error: Exception) -> QueueError:
    """The error of a Redis that cannot be reached."""
    return QueueError(
        f"Redis is not reachable: {error}",
        field="redis_url",
        remedy="start it, or correct redis_url; answers are delayed until then, nothing is lost",
    )


def _notification_key(label: str) -> str:
    return f"ragbandit:bell:{label}"


def _request_key(decision_id: str) -> str:
    return f"ragbandit:request:{decision_id}"


def _running_key(decision_id: str) -> str:
    return f"ragbandit:running:{decision_id}"


def _tries_key(decision_id: str) -> str:
    return f"ragbandit:tries:{decision_id}"


class MemoryJobs:
    """A queue in this process that only remembers what it was asked: for tests and for use without Redis."""

    def __init__(self) -> None:
        self.outage = Outage()
        self.notified: list[PolicyLabel] = []
        self.enqueued: list[DecisionId] = []
        self.moved_to_front: list[DecisionId] = []
        self.published: list[str] = []
        #: True: every call raises QueueError, as with Redis down
        self.broken = False

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Remember the label."""
        self._check()
        self.notified.append(label)

    def enqueue_answer(self, decision_id: DecisionId, *, timeout_s: float, missing: bool = False) -> None:
        """Remember the decision."""
        del timeout_s, missing
        self._check()
        self.enqueued.append(decision_id)

    def move_to_front(self, decision_id: DecisionId) -> None:
        """Remember the decision."""
        self._check()
        self.moved_to_front.append(decision_id)

    def missing(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """Those that were never enqueued."""
        self._check()
        return [i for i in ids if i not in self.enqueued]

    def publish(self, notification: str) -> None:
        """Remember the line."""
        self._check()
        self.published.append(notification)

    def listen(self, handle: Callable[[str], None]) -> Subscription:
        """Nothing ever arrives: whoever uses it polls."""
        del handle
        return _Silence()

    def depth(self) -> dict[str, int]:
        """The jobs enqueued so far."""
        self._check()
        return {"answer": len(self.enqueued), "learn": len(self.notified)}

    def ping(self) -> None:
        """Nothing to reach."""
        self._check()

    def close(self) -> None:
        """Nothing to close."""

    def _check(self) -> None:
        began = time.monotonic()
        if self.broken:
            error = QueueError("the queue is down (MemoryJobs.broken)")
            self.outage.failed(error)
            raise error
        self.outage.reached(began=began)


class _Silence:
    """The subscription of MemoryJobs."""

    def close(self) -> None:
        """Nothing to close."""
