"""Job queue of a process: it rings for workers and learner through Redis, and tells everybody what has happened.

The database has the facts, and whoever is woken looks there by itself too, every second or two: losing Redis makes
things late, not lost. `RedisJobs` is the real queue, `MemoryJobs` the public test double, `Notifier` (notifier.py) uses
either without ever failing. This module loads redis and RQ; a library without Redis does not load it.

Workers are woken by bells: jobs of RQ that carry nothing, so that the router need not import what they call. Whoever
can write to Redis can queue anything, and RQ imports the function that a record names, calls its callbacks and its web
hooks. `Bell` takes nothing but the name out of a record, and looks that up among ours.
"""

import json
import logging
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

import redis
from redis.exceptions import RedisError, ResponseError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from ragbandit.router.queue.presence import QueueWork, WorkerState, present, workers_of
from ragbandit.router.queue.redis_server import Outage, Part
from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId, PolicyLabel

log = logging.getLogger("ragbandit.jobs")

#: the one channel; its name stays as it was, so that processes of different releases hear each other
CHANNEL = "ragbandit:news"
#: a notification is a word, and most often an id; whatever is longer or has other bytes is dropped unread
_NOTIFICATION: Final = re.compile(rb"[a-z]{1,32}(:[!-~]{1,64})?")
#: how often the thread looks whether to end, seconds
LOOK_S: Final = 0.25
#: pause before Redis is tried again, seconds
PAUSE_S: Final = 1.0
#: a listener that is not subscribed for that long is told of: at its start, and after an outage, it takes a moment
GRACE_S: Final = 3.0
#: a listener that has been at one notification for that long is stuck, seconds
STUCK_S: Final = 15.0
#: least time between two log lines about errors that nobody foresaw, seconds
QUIET_S: Final = 30.0


class Listener:
    """A thread that hands every notification to `handle`.

    It survives Redis going away and coming back, whatever somebody else publishes, and what `handle` raises.
    """

    def __init__(self, client: "redis.Redis", handle: Callable[[str], None], *, outage: Outage) -> None:
        self._client = client
        self._handle = handle
        self._outage = outage
        self._stop = threading.Event()
        self._subscribed = False
        #: when the thread last waited for a notification (time.monotonic)
        self._turn_at = time.monotonic()
        self._throttle = Throttle(QUIET_S)
        self._thread = threading.Thread(target=self._run, name="ragbandit-listener", daemon=True)
        self._thread.start()

    def fault(self) -> str | None:
        """Why notifications do not arrive now; None: they do."""
        if not self._thread.is_alive():
            return "the listener has ended, so answers and learning come up to a second late: restart the process"
        silent_s = time.monotonic() - self._turn_at
        if not self._subscribed and silent_s > GRACE_S:
            return "the listener is not subscribed to notifications, and tries again every second"
        return f"the listener has been at one notification for {silent_s:.0f} s" if silent_s > STUCK_S else None

    def close(self) -> None:
        """End the thread; waits for at most 2 s."""
        self._stop.set()
        self._thread.join(2)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._receive()
            except (RedisError, OSError) as error:
                # Pollers behind every listener find the same facts in SQL, a little later.
                self._outage.failed(error)
            except Exception:  # without this thread every answer would be late until the process ends
                self._log_unforeseen()
            self._subscribed = False
            self._stop.wait(PAUSE_S)

    def _receive(self) -> None:
        """Receive until the listener is closed. Raises RedisError or OSError."""
        with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call] # redis
            began = time.monotonic()
            pubsub.subscribe(CHANNEL)
            self._outage.reached(began=began)
            self._subscribed = True
            while not self._stop.is_set():
                self._turn_at = time.monotonic()
                message = pubsub.get_message(timeout=LOOK_S)
                if message and message["type"] == "message":
                    self._hand_on(message["data"])

    def _hand_on(self, published: bytes) -> None:
        if not _NOTIFICATION.fullmatch(published):
            self._outage.foreign.add("notifications", f"{len(published)} bytes, {published[:40]!r}")
            return
        notification = published.decode("ascii")
        try:
            self._handle(notification)
        except Exception as error:  # of whoever handles it: the listener must live on
            facts = {"action": "listen", "notification": notification, "reason": str(error)}
            log.warning("a notification was not handled; polling finds the same in the database", extra=facts)

    def _log_unforeseen(self) -> None:
        if self._throttle.lets_pass():
            log.exception("receiving notifications failed; it begins again", extra={"action": "listen"})


Reply = TypeVar("Reply")

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

    expected: as of Outage. max_queued: bells of answers that may wait.
    """

    def __init__(self, client: "redis.Redis", *, expected: bool = True, max_queued: int = MAX_QUEUED) -> None:
        self.client = client
        #: whether it could be reached last
        self.outage = Outage(expected=expected)
        self._max_queued = max_queued
        #: bells for which there is room, as counted at that time (time.monotonic)
        self._room, self._counted_at = 0, -COUNT_S
        self._queues = {name: queue_of(client, name) for name in BELLS}

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Ring for the learner unless a bell waits: feedback by the thousand makes one."""
        del label  # whoever learns another one looks in vain, no more

        def ring() -> None:
            if not self._queues["learn"].count:
                ring_bells(self.client, "learn", count=1)

        self._reached(ring)

    def enqueue_answers(self, ids: Sequence[DecisionId]) -> None:
        """Ring once for each of these decisions, which wait in the answer queue of the database, as far as there is
        room. Without a bell a worker finds it within a second or two.
        """

        def ring() -> None:
            if time.monotonic() >= self._counted_at + COUNT_S:
                self._room = self._max_queued - self._queues["answer"].count
                self._counted_at = time.monotonic()
            count = min(len(ids), self._room)
            if count > 0:
                self._room -= count
                ring_bells(self.client, "answer", count=count)

        self._reached(ring)

    def set_learner_fault(self, label: PolicyLabel, reason: str | None) -> None:
        """Tell the routers why this ledger cannot be learned; None: it can. Forgotten after LEARNER_FAULT_S."""
        key = _fault_key(label)
        if reason is None:
            self._reached(lambda: self.client.delete(key))
        else:
            self._reached(lambda: self.client.set(key, reason[:_MAX_FAULT], ex=LEARNER_FAULT_S))

    def learner_fault(self, label: PolicyLabel) -> str | None:
        """Why the learner of this ledger cannot learn, as it said within LEARNER_FAULT_S; None: it said nothing."""
        fault = self._read("faults", lambda: self.client.getrange(_fault_key(label), 0, 4 * _MAX_FAULT), absent=b"")
        try:
            return fault.decode()[:_MAX_FAULT] or None
        except UnicodeDecodeError:
            self.outage.foreign.add("faults", "what a learner said is not UTF-8")
            return None

    def count_job(self, queue: str, *, seconds: float, failed: bool) -> None:
        """A worker has done a job of this queue. Counts that somebody else has changed begin anew."""

        def count() -> None:
            try:
                with self.client.pipeline(transaction=False) as pipeline:
                    pipeline.hincrby(_WORK_KEY, f"{queue}:{'failed' if failed else 'done'}", 1)
                    pipeline.hincrbyfloat(_WORK_KEY, f"{queue}:seconds", seconds)
                    pipeline.execute()
            except ResponseError as error:
                self.outage.foreign.add_error("counters", error)
                self.client.unlink(_WORK_KEY)

        self._reached(count)

    def publish(self, notification: str) -> None:
        """Send a line to every listener: "outcome:<id>", "cancel:<id>", "stream:<id>" or "snapshot"."""
        self._reached(lambda: self.client.publish(CHANNEL, notification))

    def listen(self, handle: Callable[[str], None]) -> Listener:
        """Call `handle` with every line that is published from now on, in a thread of its own."""
        return Listener(self.client, handle, outage=self.outage)

    def depth(self) -> dict[str, int]:
        """Bells waiting, by queue, at the same cost whatever their number: about as many as there are decisions to
        answer, one or none to learn.
        """

        def lengths() -> list[Any]:
            with self.client.pipeline(transaction=False) as pipeline:
                for queue in self._queues.values():
                    pipeline.llen(queue.key)
                return pipeline.execute(raise_on_error=False)

        numbers = [int(self.outage.foreign.number("queues", length)) for length in self._reached(lengths)]
        return dict(zip(self._queues, numbers, strict=True))

    def refused(self) -> int:
        """What workers found in the queues that is none of our bells, since this Redis has been counting."""
        count = self._read("counters", lambda: self.client.get(REFUSED_KEY), absent=None)
        return int(self.outage.foreign.number("counters", count))

    def workers(self) -> list[WorkerState]:
        """The threads of workers that are there, as their processes say, presence.MAX_THREADS at most."""
        return workers_of(self._read("workers", lambda: present(self.client), absent=[]))

    def work(self) -> dict[str, QueueWork]:
        """What all workers have done, by queue, since this Redis has been counting."""
        names = [f"{queue}:{counted}" for queue in _QUEUES for counted in _COUNTED]
        values = self._read("counters", lambda: self.client.hmget(_WORK_KEY, names), absent=[None] * len(names))
        numbers = iter([self.outage.foreign.number("counters", value) for value in values])
        return {
            queue: QueueWork(done=int(next(numbers)), failed=int(next(numbers)), seconds=next(numbers))
            for queue in _QUEUES
        }

    def ping(self) -> None:
        """Do nothing but reach Redis, over a new connection.

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

    def _read(self, part: Part, read: Callable[[], Any], *, absent: Any) -> Any:
        """What is read; `absent` where the key holds something that is not ours, which is counted."""

        def attempt() -> Any:
            try:
                return read()
            except ResponseError as error:
                self.outage.foreign.add_error(part, error)
                return absent

        return self._reached(attempt)

    def _reached(self, work: Callable[[], Reply]) -> Reply:
        began = time.monotonic()
        try:
            reply = work()
        except (RedisError, OSError) as error:
            if self.outage.met(error, part="keys"):  # it can be reached: nothing else is to wait for this
                self.outage.reached(began=began)
                raise _foreign(error) from error
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


ANSWER_QUEUE: Final = "ragbandit-answer"
LEARN_QUEUE: Final = "ragbandit-learn"
#: name of a queue for people -> RQ's queue; its bells have the same name
BELLS: Final = {"answer": ANSWER_QUEUE, "learn": LEARN_QUEUE}
#: counts what was taken from a queue and was none of our bells
REFUSED_KEY: Final = "ragbandit:refused-jobs"
#: largest `data` of a record that is read, bytes, compressed and not
_MAX_BYTES: Final = 4096
#: the record of a bell that nobody takes is kept that long, and that of one that failed, seconds
_KEEP_S: Final = 86_400
_KEEP_FAILED_S: Final = 60


class Bell(Job):  # type: ignore[misc] # RQ has no types
    """A job of RQ that calls one of `functions` without arguments, whatever else its record says."""

    #: name of a bell -> what it calls in this process
    functions: ClassVar[Mapping[str, Callable[[], None]]] = {}

    def refresh(self) -> None:
        """Read the record. Raises NoSuchJobError, by which RQ passes on, if it is none of our bells: it is removed."""
        name = _name(self.connection, self.key)
        if name is None or name not in self.functions:
            if self.connection.unlink(self.key):
                self.connection.incr(REFUSED_KEY)
            raise NoSuchJobError(f"not a bell: {self.id}")
        data = JSONSerializer.dumps((name, None, (), {}))
        self.restore({b"data": data, b"origin": BELLS[name].encode(), b"timeout": b"-1", b"result_ttl": b"0"})

    @property
    def func(self) -> Callable[[], None]:
        """Its function. Nothing is imported."""
        return self.functions[self.func_name]


def bell_class(functions: Mapping[str, Callable[[], None]]) -> type[Bell]:
    """The class of jobs of a process that calls these functions."""
    return type("ProcessBell", (Bell,), {"functions": functions})


def queue_of(client: "redis.Redis", name: str) -> Queue:
    """RQ's queue of these bells."""
    return Queue(BELLS[name], connection=client, serializer=JSONSerializer)


def ring_bells(client: "redis.Redis", name: str, *, count: int) -> None:
    """Queue so many bells. Raises RedisError."""
    queue = queue_of(client, name)
    bell = Queue.prepare_data(name, timeout=-1, result_ttl=0, ttl=_KEEP_S, failure_ttl=_KEEP_FAILED_S)
    queue.enqueue_many([bell] * count)


def _name(client: "redis.Redis", key: str) -> str | None:
    """The name that the record of a job has; None for anything else, however large."""
    try:
        size: Any = client.hstrlen(key, "data")
        raw: Any = client.hget(key, "data") if 0 < size <= _MAX_BYTES else b""
    except ResponseError:  # of another type
        return None
    try:
        name, *_ = json.loads(_decompressed(raw))
    except (ValueError, TypeError, RecursionError, zlib.error):
        return None
    return name if isinstance(name, str) else None


def _decompressed(data: bytes) -> bytes:
    """RQ compresses; a record that says little and becomes much is cut off, and is no JSON then."""
    try:
        return zlib.decompressobj().decompress(data, _MAX_BYTES)
    except zlib.error:
        return data
