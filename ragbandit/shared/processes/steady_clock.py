"""A clock for deadlines whose effects cannot be undone: it ignores for TRUST_S a jump ahead of the host's clock.

The host's clock is compared with a monotonic clock. `ragbandit up` passes the result to its child processes.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Final

Clock = Callable[[], float]

log = logging.getLogger("ragbandit.clock")

#: environment variable with `SteadyClock.offset`, for the children of `ragbandit up`
OFFSET_VARIABLE: Final = "_RAGBANDIT_CLOCK"
#: largest jump ahead that is followed at once, seconds
SLACK_S: Final = 10.0
#: time after a jump ahead until the host's clock is assumed to be right, seconds
TRUST_S: Final = 3600.0


class SteadyClock:
    """The clock of this module. offset: `wall` minus `monotonic` when the host's clock was right; by default now."""

    def __init__(
        self, *, offset: float | None = None, wall: Clock = time.time, monotonic: Clock = time.monotonic
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self.offset = wall() - monotonic() if offset is None else offset
        #: value of `monotonic` at the jump; None if the host's clock is not ahead
        self._ahead_since: float | None = None

    def now(self) -> float:
        """Seconds since 1970, by the monotonic clock if the host's clock has jumped ahead."""
        wall, passed = self._wall(), self._monotonic()
        ahead_s = wall - passed - self.offset
        if ahead_s <= SLACK_S:
            self._ahead_since = None
            return wall
        if self._ahead_since is None:
            self._ahead_since = passed
            message = "the clock has jumped %.0f s ahead; deadlines ignore the jump for the next %.0f s"
            log.warning(message, ahead_s, TRUST_S, extra={"action": "clock"})
        if passed - self._ahead_since < TRUST_S:
            return passed + self.offset
        self.offset, self._ahead_since = wall - passed, None
        return wall


@cache
def steady_clock() -> SteadyClock:
    """The clock of this process."""
    offset = os.environ.get(OFFSET_VARIABLE)
    return SteadyClock(offset=None if offset is None else float(offset))
