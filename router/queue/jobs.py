"""Job queue of a process: it wakes workers and learner through Redis, and tells everybody what has happened.

The database has the facts, and whoever is woken looks there by itself too, every second or two: losing Redis makes
things late, not lost. `RedisJobs` is the real queue, `MemoryJobs` the public test double, `Notifier` (notifier.py) uses
either without ever failing. This module loads redis and RQ; a library without Redis does not load it.

Wake-ups are jobs of RQ that say "one more waits". Threads of workers take them from RQ's list when they have time, so
that its length says how many wait. Nothing that a record names is called.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import redis
from redis.exceptions import RedisError
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from ragbandit.router.queue.presence import QueueWork, WorkerState, present, workers_of
from ragbandit.router.queue.redis_server import Outage
from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId, PolicyLabel

log = logging.getLogger("ragbandit.jobs")

#: the channel; its name never changes, so that processes of different releases can communicate
CHANNEL = "ragbandit:news"
#: how often the thread looks whether to end, seconds
LOOK_S: Final = 0.25
#: pause before Redis is tried again, seconds
PAUSE_S: Final = 1.0
#: seconds without a subscription after which a listener counts as failed; subscribing takes a moment
GRACE_S: Final = 3.0
#: a listener that has been at one notification for that long is stuck, seconds
STUCK_S: Final = 15.0


@contextmanager
def reaching(outage: Outage | None) -> Iterator[None]:
    """Calls Redis in the block. Raises QueueError if it cannot be reached. outage: records whether it could."""
    began = time.monotonic()
    try:
        yield
    except (RedisError, OSError) as error:
        if outage is not None:
            outage.failed(error)
        remedy = "start it, or correct redis_url; answers are delayed until then, nothing is lost"
        raise QueueError(f"Redis is not reachable: {error}", field="redis_url", remedy=remedy) from error
    if outage is not None:
        outage.reached(began=began)


class Listener:
    """A thread that hands every notification to `handle`.

    It survives Redis going away and coming back, and what `handle` raises.
    """

    def __init__(self, client: "redis.Redis", handle: Callable[[str], None], *, outage: Outage) -> None:
        self._client = client
        self._handle = handle
        self._outage = outage
        self._stop = threading.Event()
        self._subscribed = False
        #: when the thread last waited for a notification (time.monotonic)
        self._turn_at = time.monotonic()
        self._routine = Routine("listen to notifications", self._receive, every_s=PAUSE_S).start()

    def fault(self) -> str | None:
        """Why notifications do not arrive; None if they arrive."""
        silent_s = time.monotonic() - self._turn_at
        if not self._subscribed and silent_s > GRACE_S:
            return "the listener is not subscribed to notifications, and tries again every second"
        return f"the listener has been at one notification for {silent_s:.0f} s" if silent_s > STUCK_S else None

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._routine.close()

    def _receive(self) -> None:
        """Receive until the listener is closed, or Redis goes away."""
        try:
            with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call] # redis
                with reaching(self._outage):
                    pubsub.subscribe(CHANNEL)
                self._subscribed = True
                while not self._stop.is_set():
                    self._turn_at = time.monotonic()
                    message = pubsub.get_message(timeout=LOOK_S)
                    if message and message["type"] == "message":
                        self._hand_on(message["data"])
        except (RedisError, OSError) as error:
            # Pollers behind every listener find the same facts in SQL, a little later.
            self._outage.failed(error)
        finally:
            self._subscribed = False

    def _hand_on(self, published: bytes) -> None:
        notification = published.decode("ascii", "replace")
        try:
            self._handle(notification)
        except Exception as error:  # raised by the handler; the listener must go on
            facts = {"action": "listen", "notification": notification, "reason": str(error)}
            log.warning("a notification was not handled; polling finds the same in the database", extra=facts)


#: queue for people -> RQ's queue of its wake-ups
WAKE_UPS: Final = {"answer": "ragbandit-answer", "learn": "ragbandit-learn"}
#: a wake-up that nobody takes is kept that long, seconds
_KEEP_S: Final = 86_400
#: most wake-ups that wait for answer workers: a question that is asked again wakes again, and Redis has no other cap
MAX_WAKE_UPS: Final = 10_000
#: time for which a learner's report of a failing store is valid, seconds; it tries more often
LEARNER_FAULT_S: Final = 60
#: longest text of that, characters
_MAX_FAULT: Final = 1000
#: hash of what all workers together have done, by queue and kind
_WORK_KEY: Final = "ragbandit:work"
_QUEUES: Final = ("answer", "judge", "learn")


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
    """Jobs over Redis and RQ. All but `listen` and `close` raise QueueError if it cannot be reached.

    expected: of Outage.
    """

    def __init__(self, client: "redis.Redis", *, expected: bool = True) -> None:
        self.client = client
        #: whether it could be reached last
        self.outage = Outage(expected=expected)
        self._queues = {
            name: Queue(queue, connection=client, serializer=JSONSerializer) for name, queue in WAKE_UPS.items()
        }

    def enqueue_learn(self) -> None:
        """Wake the learners unless a wake-up waits: feedback by the thousand makes one."""
        with reaching(self.outage):
            if not self._queues["learn"].count:
                self._wake("learn", count=1)

    def enqueue_answers(self, ids: Sequence[DecisionId]) -> None:
        """Send a wake-up for each of these decisions, which wait in the answer queue of the database.

        Without one a worker finds it within a second or two. At most MAX_WAKE_UPS wait.
        """
        with reaching(self.outage):
            if (count := min(len(ids), MAX_WAKE_UPS - self._queues["answer"].count)) > 0:
                self._wake("answer", count=count)

    def wait(self, queue: str, *, timeout_s: float) -> bool:
        """Take a wake-up of this queue, waiting for one for at most timeout_s; whether one came."""
        with reaching(self.outage):
            taken: Any = self.client.blpop([self._queues[queue].key], max(0.01, timeout_s))
            if taken is not None:
                self.client.unlink(Job.key_for(taken[1].decode()))
        return taken is not None

    def _wake(self, name: str, *, count: int) -> None:
        wake_up = Queue.prepare_data(name, timeout=-1, result_ttl=0, ttl=_KEEP_S)
        self._queues[name].enqueue_many([wake_up] * count)

    def set_learner_fault(self, label: PolicyLabel, reason: str | None) -> None:
        """Tell the routers why this ledger cannot be learned; None: it can. Forgotten after LEARNER_FAULT_S."""
        with reaching(self.outage):
            if reason is None:
                self.client.delete(_fault_key(label))
            else:
                self.client.set(_fault_key(label), reason[:_MAX_FAULT], ex=LEARNER_FAULT_S)

    def learner_fault(self, label: PolicyLabel) -> str | None:
        """Why the learner of this ledger cannot learn, as it said within LEARNER_FAULT_S; None: it said nothing."""
        with reaching(self.outage):
            fault: Any = self.client.get(_fault_key(label))
        return None if fault is None else fault.decode()

    def count_job(self, queue: str, *, seconds: float, failed: bool) -> None:
        """A worker has done a job of this queue."""
        with reaching(self.outage), self.client.pipeline(transaction=False) as pipeline:
            pipeline.hincrby(_WORK_KEY, f"{queue}:{'failed' if failed else 'done'}", 1)
            pipeline.hincrbyfloat(_WORK_KEY, f"{queue}:seconds", seconds)
            pipeline.execute()

    def publish(self, notification: str) -> None:
        """Send a line to every listener: "outcome:<id>", "cancel:<id>", "stream:<id>" or "snapshot"."""
        with reaching(self.outage):
            self.client.publish(CHANNEL, notification)

    def listen(self, handle: Callable[[str], None]) -> Listener:
        """Call `handle` with every line that is published from now on, in a thread of its own."""
        return Listener(self.client, handle, outage=self.outage)

    def depth(self) -> dict[str, int]:
        """Wake-ups that wait, by queue: about as many as there are decisions to answer, one or none to learn."""
        with reaching(self.outage):
            return {name: queue.count for name, queue in self._queues.items()}

    def workers(self) -> list[WorkerState]:
        """The threads of workers that are there, as their processes say, presence.MAX_THREADS at most."""
        with reaching(self.outage):
            return workers_of(present(self.client))

    def work(self) -> dict[str, QueueWork]:
        """What all workers have done, by queue, since this Redis has been counting."""
        with reaching(self.outage):
            known: Any = self.client.hgetall(_WORK_KEY)
        work = {}
        for queue in _QUEUES:
            done, failed, seconds = (known.get(f"{queue}:{name}".encode(), 0) for name in ("done", "failed", "seconds"))
            work[queue] = QueueWork(done=int(done), failed=int(failed), seconds=float(seconds))
        return work

    def ping(self) -> None:
        """Do nothing but reach Redis, over a new connection.

        One that is open already may lead to a server whose address is gone, or belongs to another server by now.
        """
        pool = self.client.connection_pool
        fresh = type(pool)(pool.connection_class, **pool.connection_kwargs)
        try:
            with reaching(None):
                redis.Redis(connection_pool=fresh).ping()
        finally:
            fresh.disconnect()

    def close(self) -> None:
        """Close all connections."""
        self.client.close()


def _fault_key(label: str) -> str:
    return f"ragbandit:learner_fault:{label}"
