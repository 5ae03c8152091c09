"""Job queue: notifications of workers and learner through Redis and RQ. Losing Redis makes things late, not lost.

`Jobs` is the protocol, `RedisJobs` the real queue, `MemoryJobs` the public test double. Workers are woken by bells
(bells.py), so that the router need not import them; what waits, and who runs it, is in the database.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import redis
from redis.exceptions import RedisError, ResponseError

from ragbandit.router.jobs import bells
from ragbandit.router.jobs.foreign_data import is_foreign
from ragbandit.router.jobs.listener import CHANNEL, Listener
from ragbandit.router.jobs.outage import Outage
from ragbandit.router.jobs.presence import QueueWork, WorkerState, present, workers_of
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId, PolicyLabel

Reply = TypeVar("Reply")

__all__ = ["LEARNER_FAULT_S", "MAX_QUEUED", "Jobs", "RedisJobs", "Subscription", "connect"]

#: bells of answers at once, unless the settings say otherwise
MAX_QUEUED: Final = 100_000
#: what a learner said of a store that fails is known that long, seconds; it tries more often than that
LEARNER_FAULT_S: Final = 60
#: longest text of that, characters
_MAX_FAULT: Final = 1000
#: how often the bells of answers are counted, seconds
COUNT_S: Final = 0.5
#: hash of what all workers together have done, by queue and kind
_WORK_KEY: Final = "ragbandit:work"
_QUEUES: Final = ("answer", "judge", "learn")
_COUNTED: Final = ("done", "failed", "seconds")


class Subscription(Protocol):
    """Notifications that arrive until it is closed."""

    def fault(self) -> str | None:
        """Why they do not arrive now; None: they do."""
        ...

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

    def learner_fault(self, label: PolicyLabel) -> str | None:
        """Why the learner of this ledger cannot learn, as it said within LEARNER_FAULT_S; None: it said nothing."""
        ...

    def enqueue_answers(self, ids: Sequence[DecisionId]) -> None:
        """Wake workers: these decisions wait in the answer queue of the database."""
        ...

    def publish(self, notification: str) -> None:
        """Send a line to every listener: "outcome:<id>", "cancel:<id>", "stream:<id>" or "snapshot"."""
        ...

    def listen(self, handle: Callable[[str], None]) -> Subscription:
        """Call `handle` with every line that is published from now on, in a thread of its own."""
        ...

    def depth(self) -> dict[str, int]:
        """Bells waiting, by queue: about as many as there are decisions to answer, one or none to learn."""
        ...

    def refused(self) -> int:
        """What workers found in the queues that is none of our bells, and have removed."""
        ...

    def workers(self) -> list[WorkerState]:
        """The threads of workers that are there, presence.MAX_THREADS at most."""
        ...

    def work(self) -> dict[str, QueueWork]:
        """What all workers have done, by queue."""
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
    """Jobs over Redis and RQ. expected: as of Outage. max_queued: bells of answers that may wait."""

    def __init__(self, client: "redis.Redis", *, expected: bool = True, max_queued: int = MAX_QUEUED) -> None:
        self.client = client
        self.outage = Outage(expected=expected)
        self._max_queued = max_queued
        #: bells for which there is room, as counted at that time (time.monotonic)
        self._room, self._counted_at = 0, -COUNT_S
        self._queues = {name: bells.queue_of(client, name) for name in bells.BELLS}

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Ring for the learner unless a bell waits: feedback by the thousand makes one."""
        del label  # whoever learns another one looks in vain, no more

        def work() -> None:
            if not self._queues["learn"].count:
                bells.ring(self.client, "learn", count=1)

        self._reached(work)

    def set_learner_fault(self, label: PolicyLabel, reason: str | None) -> None:
        """Tell the routers why this ledger cannot be learned; None: it can. Forgotten after LEARNER_FAULT_S."""

        def work() -> None:
            if reason is None:
                self.client.delete(_fault_key(label))
            else:
                self.client.set(_fault_key(label), reason[:_MAX_FAULT], ex=LEARNER_FAULT_S)

        self._reached(work)

    def learner_fault(self, label: PolicyLabel) -> str | None:
        """What its learner said within LEARNER_FAULT_S; None: nothing, or something that no learner wrote."""
        return self._reached(lambda: self._learner_fault(label))

    def _learner_fault(self, label: PolicyLabel) -> str | None:
        try:
            fault: Any = self.client.getrange(_fault_key(label), 0, 4 * _MAX_FAULT)
            return fault.decode()[:_MAX_FAULT] or None
        except UnicodeDecodeError:
            self.outage.foreign.add("faults", "what a learner said is not UTF-8")
        except ResponseError as error:
            self.outage.foreign.add_error("faults", error)
        return None

    def enqueue_answers(self, ids: Sequence[DecisionId]) -> None:
        """Ring once for each, as far as there is room. Without a bell a worker finds it within a second or two."""

        def work() -> None:
            if time.monotonic() >= self._counted_at + COUNT_S:
                self._room = self._max_queued - self._queues["answer"].count
                self._counted_at = time.monotonic()
            count = min(len(ids), self._room)
            if count > 0:
                self._room -= count
                bells.ring(self.client, "answer", count=count)

        self._reached(work)

    def count_job(self, queue: str, *, seconds: float, failed: bool) -> None:
        """A worker has done a job of this queue. Counts that somebody else has changed begin anew."""

        def work() -> None:
            try:
                with self.client.pipeline(transaction=False) as pipeline:
                    pipeline.hincrby(_WORK_KEY, f"{queue}:{'failed' if failed else 'done'}", 1)
                    pipeline.hincrbyfloat(_WORK_KEY, f"{queue}:seconds", seconds)
                    pipeline.execute()
            except ResponseError as error:
                self.outage.foreign.add_error("counters", error)
                self.client.unlink(_WORK_KEY)

        self._reached(work)

    def publish(self, notification: str) -> None:
        """Publish on the one channel."""
        self._reached(lambda: self.client.publish(CHANNEL, notification))

    def listen(self, handle: Callable[[str], None]) -> Listener:
        """A thread that listens on the one channel."""
        return Listener(self.client, handle, outage=self.outage)

    def depth(self) -> dict[str, int]:
        """Bells that wait, in one step; at the same cost whatever their number."""

        def work() -> dict[str, int]:
            with self.client.pipeline(transaction=False) as pipeline:
                for queue in self._queues.values():
                    pipeline.llen(queue.key)
                lengths = pipeline.execute(raise_on_error=False)
            numbers = [int(self.outage.foreign.number("queues", length)) for length in lengths]
            return dict(zip(self._queues, numbers, strict=True))

        return self._reached(work)

    def refused(self) -> int:
        """What workers found in the queues that is none of our bells, since this Redis has been counting."""
        return self._reached(self._refused)

    def _refused(self) -> int:
        try:
            return int(self.outage.foreign.number("counters", self.client.get(bells.REFUSED_KEY)))
        except ResponseError as error:
            self.outage.foreign.add_error("counters", error)
            return 0

    def workers(self) -> list[WorkerState]:
        """As their processes say."""
        return self._reached(self._workers)

    def _workers(self) -> list[WorkerState]:
        try:
            return workers_of(present(self.client))
        except ResponseError as error:
            self.outage.foreign.add_error("workers", error)
            return []

    def work(self) -> dict[str, QueueWork]:
        """Since this Redis has been counting."""
        return self._reached(self._work)

    def _work(self) -> dict[str, QueueWork]:
        names = [(queue, counted) for queue in _QUEUES for counted in _COUNTED]
        try:
            values: Any = self.client.hmget(_WORK_KEY, [f"{queue}:{counted}" for queue, counted in names])
        except ResponseError as error:
            self.outage.foreign.add_error("counters", error)
            values = [None] * len(names)
        row = {key: self.outage.foreign.number("counters", value) for key, value in zip(names, values, strict=True)}
        return {
            queue: QueueWork(
                done=int(row[queue, "done"]), failed=int(row[queue, "failed"]), seconds=row[queue, "seconds"]
            )
            for queue in _QUEUES
        }

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
            if is_foreign(error):  # it can be reached: nothing else is to wait for this
                self.outage.reached(began=began)
                self.outage.foreign.add("keys", str(error))
                raise _foreign(error) from error
            self.outage.failed(error)
            raise _unreachable(error) from error
        self.outage.reached(began=began)
        return reply


def _foreign(error: Exception) -> QueueError:
    """The error of a key of ours that holds something else."""
    return QueueError(
        f"a key in Redis holds something that is not ours: {error}",
        field="redis_url",
        remedy="let only ragbandit write to this Redis, or give it a database of its own (redis://host/1)",
    )


def _unreachable(error: Exception) -> QueueError:
    """The error of a Redis that cannot be reached."""
    return QueueError(
        f"Redis is not reachable: {error}",
        field="redis_url",
        remedy="start it, or correct redis_url; answers are delayed until then, nothing is lost",
    )


def _fault_key(label: str) -> str:
    return f"ragbandit:learner_fault:{label}"
