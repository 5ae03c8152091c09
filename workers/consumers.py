"""Consumers: the threads of a worker process that do jobs. The database says what to do, wake-ups when to look.

A thread that has nothing to do waits for a wake-up in Redis. Without one it looks every LOOK_S.
"""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ragbandit.router.queue.jobs import WAKE_UPS
from ragbandit.shared.errors import QueueError
from ragbandit.workers.outages import StoreOutage

if TYPE_CHECKING:
    from ragbandit.router.queue.jobs import RedisJobs

log = logging.getLogger("ragbandit.worker")

#: does what there is to do; 0: there was nothing
Job = Callable[[], int | None]

#: how often threads look for work of which no wake-up told, seconds
LOOK_S: Final = 1.0
#: Redis is given up when a reply is so late, whole seconds
REPLY_S: Final = 2
#: a second signal within that long is the first one again, sent to the whole group of processes
SAME_SIGNAL_S: Final = 1.0
#: threads whose runs were cut off get that long to end
FAREWELL_S: Final = 2.0


@dataclass(kw_only=True)
class Consumer:
    """Threads that do the jobs of one queue until told to stop, or with `burst` until there is nothing to do.

    look: finds a job and claims it, or None; told whether a wake-up came. One thread looks at a time. every_s: how
    often it looks unasked.
    """

    name: str
    threads: int
    look: Callable[[bool], Job | None]
    jobs: "RedisJobs"
    stopping: threading.Event
    every_s: float = LOOK_S
    #: threads at work
    busy: int = 0
    #: nobody has looked yet: something may have waited before this process began
    _fresh: bool = True
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
        woken = self._wait() if wait and not burst else False
        while not self.stopping.is_set():
            try:
                job = self.look(woken or self._fresh)
                self._fresh = False
                self._outage.ended()
            except Exception as error:  # most often a StoreError; this thread must live on
                self._outage.failed(error)
                job = None
            if job is not None or burst:
                return job
            woken = self._wait()
        return None

    def _wait(self) -> bool:
        """Until a wake-up comes, for every_s at most; whether one came. Without Redis this is a pause."""
        give_up = time.monotonic() + self.every_s
        while not self.stopping.is_set() and (left := give_up - time.monotonic()) > 0:
            look_s = min(left, LOOK_S)
            if self.name not in WAKE_UPS or self.jobs.outage.paused:
                self.stopping.wait(look_s)
                continue
            with contextlib.suppress(QueueError):  # logged once per outage
                if self.jobs.wait(self.name, timeout_s=look_s):
                    return True
        return False

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


def wait_for_signal(consumers: Sequence[Consumer], signals: "Signals", *, cut_off: Callable[[], None]) -> None:
    """Until all threads have ended. The first signal stops them, a second one also calls cut_off."""

    def ended(timeout_s: float) -> bool:
        return all(consumer.wait(timeout_s) for consumer in consumers)

    while not ended(0.1):
        if signals.first:
            for consumer in consumers:
                consumer.stopping.set()
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
