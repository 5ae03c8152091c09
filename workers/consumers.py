"""Consumers: the threads of a worker process that do jobs. The database says what there is to do, bells when to look.

The bells of a queue are taken by one worker of RQ, in a thread of its own. It keeps a bell until one of our threads has
time for it, so that the length of RQ's list says how many wait. Without bells, our threads look every LOOK_S.
"""

import contextlib
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError
from rq import SimpleWorker
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty

from ragbandit.router.queue.jobs import bell_class, queue_of
from ragbandit.shared.errors import QueueError
from ragbandit.workers.outages import StoreOutage

if TYPE_CHECKING:
    import redis

    from ragbandit.router.queue.jobs import RedisJobs

log = logging.getLogger("ragbandit.worker")

#: does what there is to do; 0: there was nothing
Job = Callable[[], int | None]

#: how often threads look for work of which no bell told, seconds
LOOK_S: Final = 1.0
#: Redis is given up when a reply is so late, whole seconds
REPLY_S: Final = 2
#: how often the thread that takes bells looks whether to end, whole seconds
BELLS_LOOK_S: Final = 2
#: between two attempts to reach Redis or the database, seconds
PAUSE_S: Final = 0.5
#: a second signal within that long is the first one again, sent to the whole group of processes
SAME_SIGNAL_S: Final = 1.0
#: threads whose runs were cut off get that long to end
FAREWELL_S: Final = 2.0


class Doorbell:
    """Wakes one thread that waits for each ring."""

    def __init__(self) -> None:
        self._rings: queue.Queue[None] = queue.Queue(maxsize=1)
        self._rings.put(None)  # what waited before this process began

    def ring(self, *, timeout_s: float = 0.0) -> bool:
        """Wake a thread; waits until there is room for the ring. False: there was none."""
        try:
            self._rings.put(None, block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Full:
            return False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Until somebody rings, for timeout_s at most; whether somebody did."""
        try:
            self._rings.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return False
        return True


@dataclass(kw_only=True)
class Consumer:
    """Threads that do the jobs of one queue until told to stop, or with `burst` until there is nothing to do.

    look: finds a job and claims it, or None; told whether a bell rang. One thread looks at a time. every_s: how often
    it looks unasked.
    """

    name: str
    threads: int
    look: Callable[[bool], Job | None]
    jobs: "RedisJobs"
    stopping: threading.Event
    every_s: float = LOOK_S
    doorbell: Doorbell = field(default_factory=Doorbell)
    #: threads at work
    busy: int = 0
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _count: threading.Lock = field(default_factory=threading.Lock)
    _running: list[threading.Thread] = field(default_factory=list)
    _outage: StoreOutage = field(init=False)

    def __post_init__(self) -> None:
        self._outage = StoreOutage(
            action="look",
            failing=f"cannot look for what there is to {self.name}; trying again, and nothing is lost. Make the "
            "database reachable",
            restored=f"can look for what there is to {self.name} again",
        )

    def start(self, *, burst: bool = False) -> None:
        """Start the threads."""
        for number in range(1, self.threads + 1):
            name = f"{self.name}-{number}"
            thread = threading.Thread(target=self._run, kwargs={"burst": burst}, name=name, daemon=True)
            self._running.append(thread)
            thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Until all threads have ended, for timeout_s at most; whether they have."""
        give_up = time.monotonic() + timeout_s
        for thread in self._running:
            thread.join(max(0.0, give_up - time.monotonic()))
        return not any(thread.is_alive() for thread in self._running)

    def _run(self, *, burst: bool) -> None:
        idle = False
        while not self.stopping.is_set():
            with self._turn:
                job = self._next(burst=burst, wait=idle)
            idle = job is not None and self._do(job)
            if burst and (idle or job is None):
                return

    def _next(self, *, burst: bool, wait: bool) -> Job | None:
        """The next job; None when this process is to end, or in a burst for want of one. wait: before looking."""
        rang = self.doorbell.wait(self.every_s) if wait and not burst else False
        while not self.stopping.is_set():
            try:
                job = self.look(rang)
                self._outage.ended()
            except Exception as error:  # most often a StoreError; this thread must live on
                self._outage.failed(error)
                job = None
            if job is not None or burst:
                return job
            rang = self.doorbell.wait(self.every_s)
        return None

    def _do(self, job: Job) -> bool:
        """Do it; True if the next look can wait: it failed, or it said that there was nothing to do."""
        with self._count:
            self.busy += 1
        began, failed, done = time.monotonic(), False, None
        try:
            done = job()
        except Exception:
            failed = True
            facts = {"action": "job", "queue": self.name}
            log.exception("a job failed; what it left undone is tried again", extra=facts)
        finally:
            with self._count:
                self.busy -= 1
        if not self.jobs.outage.paused:
            with contextlib.suppress(QueueError):  # logged once per outage
                self.jobs.count_job(self.name, seconds=time.monotonic() - began, failed=failed)
        return failed or done == 0


class _Worker(SimpleWorker):  # type: ignore[misc] # RQ has no types
    """RQ's worker in a thread, which can have neither signal handlers nor time limits by signals."""

    death_penalty_class = TimerDeathPenalty
    max_connection_wait_time = 1.0

    def _install_signal_handlers(self) -> None:
        """The main thread has them."""

    def subscribe(self) -> None:
        """Nobody sends RQ's commands to our workers: with one of them anybody in Redis could end this process."""


class BellTaker:
    """A thread that takes the bells of one queue from RQ and rings each for its consumer, until that is told to stop.

    connect: makes a client of Redis.
    """

    def __init__(
        self, name: str, *, connect: "Callable[[], redis.Redis]", jobs: "RedisJobs", consumer: Consumer
    ) -> None:
        self._name, self._connect, self._jobs, self._consumer = name, connect, jobs, consumer
        self._thread = threading.Thread(target=self._run, name=f"ragbandit-bells-{name}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it has ended, as it does soon after its consumer was told to."""
        self._thread.join(BELLS_LOOK_S + REPLY_S)

    def _hand_on(self) -> None:
        stopping = self._consumer.stopping
        while not (stopping.is_set() or self._consumer.doorbell.ring(timeout_s=LOOK_S)):
            pass

    def _run(self) -> None:
        """RQ's worker ends when Redis goes, and at whatever else it does not expect; this thread begins again."""
        client = self._connect()
        bells = bell_class({self._name: self._hand_on})
        while not self._consumer.stopping.is_set():
            try:
                worker = _Worker(
                    [queue_of(client, self._name)],
                    connection=client,
                    serializer=JSONSerializer,
                    job_class=bells,
                    default_result_ttl=0,
                )
                while not self._consumer.stopping.is_set():
                    began = time.monotonic()
                    client.ping()
                    self._jobs.outage.reached(began=began)
                    worker.work(logging_level="CRITICAL", max_idle_time=BELLS_LOOK_S)
                    if time.monotonic() < began + PAUSE_S:
                        break  # something ended it
            except (RedisError, OSError) as error:
                self._jobs.outage.failed(error)
            except Exception as error:  # what others wrote into RQ's keys
                self._jobs.outage.foreign.add("queues", f"{type(error).__name__}: {error}")
            self._consumer.stopping.wait(PAUSE_S)
        client.close()


def wait_for_signal(consumers: Sequence[Consumer], signals: "Signals", *, cut_off: Callable[[], None]) -> None:
    """Until all threads have ended. The first signal stops them, a second one also calls cut_off."""

    def ended(timeout_s: float) -> bool:
        return all(consumer.wait(timeout_s) for consumer in consumers)

    while not ended(0.1):
        if signals.first:
            for consumer in consumers:
                consumer.stopping.set()
                consumer.doorbell.ring()  # one that waits for work ends at once, however seldom it looks
        if signals.second:
            log.warning("second signal: runs under way are cut off", extra={"action": "cut_off"})
            give_up = time.monotonic() + FAREWELL_S
            cut_off()
            while not ended(0.1) and time.monotonic() < give_up:
                cut_off()  # a thread may have begun something just then
            return


class Signals:
    """SIGINT and SIGTERM as they come in, from now on. Only the main thread may make this."""

    def __init__(self) -> None:
        self._came: list[float] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            # No more than this: whatever takes a lock could wait for the very thread that the signal interrupted.
            signal.signal(number, lambda *_: self._came.append(time.monotonic()))

    @property
    def first(self) -> bool:
        """One came."""
        return bool(self._came)

    @property
    def second(self) -> bool:
        """Another one came that is not the same sent twice."""
        return bool(self._came) and self._came[-1] - self._came[0] > SAME_SIGNAL_S
