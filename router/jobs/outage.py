"""Outage: whether this process can reach Redis. Logs once when the connection is lost and once when it is back."""

import logging
import threading
import time

from ragbandit.router.jobs.foreign_data import ForeignData

__all__ = ["PAUSE_S", "Outage"]

log = logging.getLogger("ragbandit.jobs")

#: how long callers who could wait for a reply leave Redis alone after a failure, seconds
PAUSE_S = 2.0


class Outage:
    """The state of this process's connections to Redis, shared by all of them. Safe to use from several threads.

    expected: whether somebody configured a Redis, or one ran at the start. Not reaching one that nobody expects is
    logged at DEBUG until it was reached once, any other outage is a WARNING.
    """

    def __init__(self, *, expected: bool = True) -> None:
        #: what these connections brought and is not ours
        self.foreign = ForeignData()
        self._lock = threading.Lock()
        self._expected = expected
        self._seen = False
        #: when the outage began and when the last attempt failed (time.monotonic); None: there is no outage
        self._since: float | None = None
        self._failed_at = 0.0

    @property
    def lasts(self) -> bool:
        """True if the last attempt to reach Redis failed."""
        return self._since is not None

    @property
    def paused(self) -> bool:
        """True if an attempt failed less than PAUSE_S ago."""
        return self._since is not None and time.monotonic() < self._failed_at + PAUSE_S

    def failed(self, error: Exception) -> None:
        """Record that Redis could not be reached."""
        with self._lock:
            self._failed_at = time.monotonic()
            if self._since is not None:
                return
            self._since = self._failed_at
            message = "lost connection to Redis" if self._seen else "cannot reach Redis"
            level = logging.WARNING if self._expected or self._seen else logging.DEBUG
        facts = {"action": "redis_lost", "reason": str(error)}
        log.log(level, "%s; retrying (answers are delayed, nothing is lost)", message, extra=facts)

    def reached(self, *, began: float) -> None:
        """Record a reply of Redis to something that began at this time (time.monotonic)."""
        if self._seen and self._since is None:
            return
        with self._lock:
            if self._since is None:
                self._seen = True
                return
            if began < self._failed_at:
                return  # this reply may be older than the failure
            lasted, self._since = time.monotonic() - self._since, None
            level = logging.INFO if self._expected or self._seen else logging.DEBUG
            self._seen = True
        log.log(level, "Redis is reachable again", extra={"action": "redis_back", "outage_s": round(lasted, 1)})
