"""Outages of Redis. Each is logged once, and callers skip Redis for PAUSE_S after a failure."""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragbandit.router.telemetry.routines import StoreOutage

#: seconds after a failure for which callers skip Redis
PAUSE_S = 2.0


def is_listening(path: Path) -> bool:
    """Whether a server listens at this Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class Outage(StoreOutage):
    """Whether this process can reach Redis. expected: if False, outages before the first reply are logged as DEBUG."""

    def __init__(self, *, expected: bool = True) -> None:
        super().__init__(action="redis", failing="", restored="Redis is reachable again", log="ragbandit.jobs")
        self._expected = expected
        self._seen = False
        self._failed_at = 0.0

    @property
    def paused(self) -> bool:
        """Whether callers should skip Redis now."""
        return self.lasts and time.monotonic() < self._failed_at + PAUSE_S

    def note_failure(self, error: BaseException) -> None:
        self._failed_at = time.monotonic()
        if not self.lasts:
            failure = "lost connection to Redis" if self._seen else "cannot reach Redis"
            self.failing = f"{failure}; retrying (answers are delayed, nothing is lost)"
            self.level = logging.WARNING if self._expected or self._seen else logging.DEBUG
        super().note_failure(error)

    def note_reply(self, *, sent_at: float) -> None:
        """Record a reply of Redis. sent_at: when the request was sent (time.monotonic)."""
        if self.lasts and sent_at < self._failed_at:
            return  # the request began before the failure, so its reply does not end the outage
        self._seen = True
        self.note_success()


@contextmanager
def redis_call(outage: Outage | None) -> Iterator[None]:
    """For a block that calls Redis: raises QueueError if Redis fails or refuses. outage: records the result."""
    # Imported here, since this module must load if redis is not installed.
    from redis.exceptions import RedisError

    from ragbandit.router.queue.refusals import queue_error

    began = time.monotonic()
    try:
        yield
    except (RedisError, OSError) as error:
        failure = queue_error(error)
        if outage is not None:
            outage.note_failure(failure)
        raise failure from error
    if outage is not None:
        outage.note_reply(sent_at=began)
