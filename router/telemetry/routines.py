"""Routines: threads that do a chore again and again, and log an outage at both ends and now and then."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.errors import QueueError

Reply = TypeVar("Reply")

#: least time between two log lines of one outage, seconds
QUIET_S: Final = 60.0
#: a thread that is to end is waited for that long, seconds
JOIN_S: Final = 5.0


class StoreOutage:
    """The outage of one kind of work. Safe to use from several threads.

    action: names the work in the log. failing: the line while it fails: what fails, what that means, what to do.
    restored: the line once it works again.
    """

    def __init__(self, *, action: str, failing: str, restored: str, log: str = "ragbandit.worker") -> None:
        self._action, self.failing, self._restored = action, failing, restored
        self.level = logging.ERROR
        self._log = logging.getLogger(log)
        self._lock = threading.Lock()
        #: when it began (time.monotonic); None: it works
        self._since: float | None = None
        self.throttle = Throttle(QUIET_S)
        self._times = 0

    @property
    def lasts(self) -> bool:
        """True if the last attempt failed."""
        return self._since is not None

    def failed(self, error: BaseException) -> None:
        """Record an attempt that failed. It is logged at first, and every QUIET_S while that lasts."""
        with self._lock:
            now = time.monotonic()
            self._times += 1
            if self._since is None:
                self._since, self.throttle = now, Throttle(QUIET_S)
            if not self.throttle.lets_pass():
                return
            facts = {"action": self._action, "attempts": self._times, "for_s": round(now - self._since, 1)}
        self._log.log(self.level, self.failing, extra=facts | {"reason": f"{type(error).__name__}: {error}"})

    def ended(self) -> None:
        """Record an attempt that succeeded."""
        if not self.lasts:
            return
        with self._lock:
            if self._since is None:
                return
            lasted, self._since, self._times = time.monotonic() - self._since, None, 0
        level = logging.DEBUG if self.level == logging.DEBUG else logging.INFO
        self._log.log(level, self._restored, extra={"action": self._action, "outage_s": round(lasted, 1)})


class Routine:
    """A thread that does a chore again and again until it is closed. What fails is logged and repeated.

    chore: what it does, for the log and the thread's name. do: returns the seconds until the next time, None for
    every_s. at_end: done once after that. at_once: the first time when it is started, not every_s later. outage: its
    log where a line of its own is needed.
    """

    def __init__(
        self,
        chore: str,
        do: Callable[[], float | None],
        *,
        every_s: float,
        at_end: Callable[[], object] | None = None,
        at_once: bool = True,
        outage: StoreOutage | None = None,
    ) -> None:
        self._do, self._every_s, self._at_end, self._at_once = do, every_s, at_end, at_once
        self._outage = outage or StoreOutage(
            action="housekeeping",
            failing=f"cannot {chore}; trying again, and nothing is lost. Make the database reachable",
            restored=f"can {chore} again",
        )
        self._woken = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"ragbandit: {chore}", daemon=True)

    def start(self) -> "Routine":
        """Start the thread; returns itself."""
        self._thread.start()
        return self

    def wake(self) -> None:
        """Do the chore now."""
        self._woken.set()

    def stop(self) -> None:
        """End the thread when it has finished what it is at."""
        self._closing = True
        self._woken.set()

    def close(self) -> None:
        """End the thread; waits for at most JOIN_S. Harmless if it never started."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        if not self._at_once:
            self._wait(self._every_s)
        while not self._closing:
            wait_s = self._attempt(self._do)
            self._wait(self._every_s if wait_s is None else wait_s)
        if self._at_end is not None:
            self._attempt(self._at_end)

    def _wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        if not self._closing:
            self._woken.clear()

    def _attempt(self, work: Callable[[], Reply]) -> Reply | None:
        try:
            reply = work()
            self._outage.ended()
            return reply
        except QueueError:
            pass  # logged once per outage
        except BaseException as error:  # whatever a class of a user raises: this thread must live on
            self._outage.failed(error)
        return None
