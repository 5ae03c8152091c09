"""StoreOutage: whether the work of a process can read and write its store. Logs a few lines, never one per attempt."""

import logging
import threading
import time

from ragbandit.router.telemetry.throttle import Throttle

__all__ = ["QUIET_S", "StoreOutage"]

log = logging.getLogger("ragbandit.worker")

#: least time between two log lines of one outage, seconds
QUIET_S = 60.0


class StoreOutage:
    """The outage of one kind of work. Safe to use from several threads.

    action: names the work in the log. failing: the line while it fails: what fails, what that means, what to do.
    restored: the line once it works again.
    """

    def __init__(self, *, action: str, failing: str, restored: str) -> None:
        self._action, self._failing, self._restored = action, failing, restored
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
        log.error(self._failing, extra=facts | {"reason": f"{type(error).__name__}: {error}"})

    def ended(self) -> None:
        """Record an attempt that succeeded."""
        if not self.lasts:
            return
        with self._lock:
            if self._since is None:
                return
            lasted, self._since, self._times = time.monotonic() - self._since, None, 0
        log.info(self._restored, extra={"action": self._action, "outage_s": round(lasted, 1)})
