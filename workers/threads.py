"""Threads of a worker process: consumers do jobs, one event loop has the arms.

The database says what there is to do, wake-ups in Redis when to look. Work outlasts a store that fails: it is repeated,
and the outage is logged at both ends and now and then.
"""

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ragbandit.router.queue.jobs import WAKE_UPS
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.shared.errors import QueueError, SnapshotError, StoreError
from ragbandit.shared.outbound import back_off

if TYPE_CHECKING:
    from ragbandit.router.queue.jobs import RedisJobs


Reply = TypeVar("Reply")

log = logging.getLogger("ragbandit.worker")

#: first and longest pause between two attempts to do something that the store did not take, seconds
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0


def insist(
    work: Callable[[], Reply],
    *,
    seconds: float,
    ending: threading.Event,
    failed: Callable[[StoreError | SnapshotError], object] | None = None,
) -> Reply:
    """The result of `work`, which is repeated while the store fails, for a limited time, and once more when `ending` is
    set. failed: called with every error except the last one, which is raised: StoreError or SnapshotError.
    """
    give_up, attempts = time.monotonic() + seconds, 0
    while True:
        last = ending.is_set() or time.monotonic() >= give_up
        try:
            return work()
        except (StoreError, SnapshotError) as error:
            if last:
                raise
            if failed is not None:
                failed(error)
        attempts += 1
        pause = back_off(attempts, base_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        ending.wait(min(pause, max(0.0, give_up - time.monotonic())))


#: a client that does not close within that long is left to the end of the process
CLOSE_S = 5.0


class EventLoop:
    """The loop and its thread. `run` may be called from many threads at once: their coroutines share the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="ragbandit-loop", daemon=True)
        self._lock = threading.Lock()
        self.awaited: set[Future[Any]] = set()
        self._thread.start()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop):  # cancels at its end what still runs
            self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, Reply], *, timeout_s: float | None = None) -> Reply:
        """The value that the coroutine returns, or the error it raises; TimeoutError after timeout_s.

        If the wait ends otherwise, the coroutine is cancelled.
        """
        with self._lock:  # from its first step on `interrupt` must find it
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
            self.awaited.add(waiting)
        try:
            return waiting.result(timeout_s)
        except BaseException:
            waiting.cancel()  # does nothing where the coroutine itself raised
            raise
        finally:
            with self._lock:
                self.awaited.discard(waiting)

    def answers(self, *, within_s: float) -> bool:
        """True if the loop gets to anything within that long; False where code that does not await blocks it."""
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(within_s)

    def position(self) -> str:
        """The place where the loop's thread is now, as "file:line function", to name the code that blocks it."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - the documented way to ask
        if frame is None:
            return "its thread has ended"
        here = traceback.extract_stack(frame)[-1]
        return f"{here.filename}:{here.lineno} {here.name}"

    def interrupt(self) -> None:
        """Cancel all coroutines in `run`; they raise CancelledError there."""
        with self._lock:
            awaited = list(self.awaited)
        for waiting in awaited:
            waiting.cancel()

    def close(self) -> None:
        """Cancel what still runs and end the thread. A second time does nothing."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning(
                "a task did not end when it was cancelled; the process ends without it", extra={"action": "close"}
            )


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
    """Threads that do the jobs of one queue until `stop`, or with `burst` until the queue is empty. look: claims a job,
    or returns None; its argument is whether a wake-up came. One thread looks at a time. every_s: seconds between looks
    without a wake-up.
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
        """Whether a further signal came that is not a repetition of the first one."""
        return bool(self._came) and self._came[-1] - self._came[0] > SAME_SIGNAL_S
