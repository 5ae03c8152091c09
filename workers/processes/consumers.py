"""Consumers: threads of a worker process that do the jobs of a queue, until a signal comes."""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ragbandit.router.queue.jobs import WAKE_UPS, RedisJobs
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.shared.errors import QueueError

log = logging.getLogger("ragbandit.worker")

#: does one unit of work; returns 0 if there was nothing to do
Job = Callable[[], int | None]

#: interval of the search for work while no wake-up comes, seconds
LOOK_S: Final = 1.0
#: time that Redis has to reply, in addition to LOOK_S, whole seconds
REPLY_S: Final = 2
#: seconds after a signal in which further signals are the same Ctrl-C, which reaches all processes of a group
SAME_SIGNAL_S: Final = 1.0


@dataclass(kw_only=True)
class Consumer:
    """Threads that do the jobs of one queue until `stopping` is set, or with `burst` until the queue is empty."""

    name: str
    threads: int
    #: claims a job; returns None if there is none. Argument: whether a wake-up came. Called by one thread at a time
    claim_next: Callable[[bool], Job | None]
    jobs: RedisJobs
    stopping: threading.Event
    every_s: float = LOOK_S
    busy: int = 0
    #: True until `claim_next` was called; the first call counts as woken, because jobs may be older than this process
    _is_first_look: bool = True
    _look_lock: threading.Lock = field(default_factory=threading.Lock)
    _busy_lock: threading.Lock = field(default_factory=threading.Lock)
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
        for number in range(1, self.threads + 1):
            name = f"{self.name}-{number}"
            thread = threading.Thread(target=self._run, kwargs={"burst": burst}, name=name, daemon=True)
            self._running.append(thread)
            thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the threads. Returns whether all have ended."""
        give_up = time.monotonic() + timeout_s
        for thread in self._running:
            thread.join(max(0.0, give_up - time.monotonic()))
        return not any(thread.is_alive() for thread in self._running)

    def _run(self, *, burst: bool) -> None:
        idle = False
        while not self.stopping.is_set():
            with self._look_lock:
                job = self._next(burst=burst, wait=idle)
            idle = job is not None and self._do(job)
            if burst and (idle or job is None):
                return

    def _next(self, *, burst: bool, wait: bool) -> Job | None:
        """The next job; None if this process is ending, or with `burst` if there is none. wait: wait before a look."""
        woken = wait and not burst and self._wait()
        while not self.stopping.is_set():
            try:
                job = self.claim_next(woken or self._is_first_look)
                self._is_first_look = False
                self._outage.note_success()
            except Exception as error:  # most often a StoreError; this thread must continue
                self._outage.note_failure(error)
                job = None
            if job is not None or burst:
                return job
            woken = self._wait()
        return None

    def _wait(self) -> bool:
        """Wait at most every_s for a wake-up. Returns whether one came. Without Redis this is only a pause."""
        give_up = time.monotonic() + self.every_s
        while not self.stopping.is_set():
            look_s = min(give_up - time.monotonic(), LOOK_S)
            if look_s <= 0:
                break
            if self.name not in WAKE_UPS or self.jobs.outage.paused:
                self.stopping.wait(look_s)
                continue
            with contextlib.suppress(QueueError):  # logged once per outage
                if self.jobs.take_wake_up(self.name, timeout_s=look_s):
                    return True
        return False

    def _do(self, job: Job) -> bool:
        """Do the job. Returns True if it failed or had nothing to do, so that the next look can wait."""
        with self._busy_lock:
            self.busy += 1
        began = time.monotonic()
        failed, done = False, None
        try:
            done = job()
        except Exception:
            failed = True
            extra = {"action": "job", "queue": self.name}
            log.exception("a job failed; its unfinished work is tried again", extra=extra)
        finally:
            with self._busy_lock:
                self.busy -= 1
        if not self.jobs.outage.paused:
            with contextlib.suppress(QueueError):  # logged once per outage
                self.jobs.count_job(self.name, seconds=time.monotonic() - began, failed=failed)
        return failed or done == 0


def wait_for_signal(
    consumers: Sequence[Consumer], signals: "Signals", *, cut_off: Callable[[], None], most_s: float
) -> None:
    """Wait until all threads have ended. The first signal stops them; a second one, or most_s seconds after the first,
    also calls cut_off, after which the threads get at most 2 s.
    """

    def ended() -> bool:
        return all(consumer.wait(0.1) for consumer in consumers)

    while not ended():
        if signals.first:
            for consumer in consumers:
                consumer.stopping.set()
        is_over = signals.since_s > most_s
        if signals.second or is_over:
            why = f"runs have not ended within {most_s:g} s" if is_over else "second signal"
            log.warning("%s: runs under way are cut off", why, extra={"action": "cut_off"})
            give_up = time.monotonic() + 2.0
            cut_off()
            while not ended() and time.monotonic() < give_up:
                cut_off()  # a thread may have begun a run in the meantime
            return


class Signals:
    """Records the times of SIGINT and SIGTERM from now on. Only the main thread may create this."""

    def __init__(self) -> None:
        self._times: list[float] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            # The handler must not take a lock, because the interrupted thread may hold the same lock.
            signal.signal(number, lambda *_: self._times.append(time.monotonic()))

    @property
    def first(self) -> bool:
        return bool(self._times)

    @property
    def since_s(self) -> float:
        """Seconds since the first signal; 0.0 without one."""
        return time.monotonic() - self._times[0] if self._times else 0.0

    @property
    def second(self) -> bool:
        return bool(self._times) and self._times[-1] - self._times[0] > SAME_SIGNAL_S
