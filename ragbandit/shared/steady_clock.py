"""A clock for what is closed for good once its time is over: a jump ahead of the host's clock does not move it.

A monotonic clock says how much time has passed since the process began, or the `ragbandit up` that started it. The
host's clock may not be further ahead than that; a clock that stays ahead for TRUST_S was set right, and is followed.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Final

Clock = Callable[[], float]

log = logging.getLogger("ragbandit.clock")

#: set by `ragbandit up` for its children: seconds from the monotonic clock of this host to its clock
OFFSET_VARIABLE: Final = "_RAGBANDIT_CLOCK"
#: steps ahead up to this one are followed at once, seconds
SLACK_S: Final = 10.0
#: a clock that was ahead for that long is right, seconds
TRUST_S: Final = 3600.0


class SteadyClock:
    """offset: seconds from `monotonic` to `wall` when the clock was right; by default it is right now."""

    def __init__(
        self, *, offset: float | None = None, wall: Clock = time.time, monotonic: Clock = time.monotonic
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self.offset = wall() - monotonic() if offset is None else offset
        #: time by `monotonic` since which the clock is ahead, if it is
        self._ahead_since: float | None = None

    def now(self) -> float:
        """Seconds since 1970 by the host's clock, or by the monotonic clock if the host's has jumped ahead."""
        wall, passed = self._wall(), self._monotonic()
        ahead_s = wall - passed - self.offset
        if ahead_s <= SLACK_S:
            self._ahead_since = None
            return wall
        if self._ahead_since is None:
            self._ahead_since = passed
            message = "the clock has jumped %.0f s ahead: nothing that waits is closed for it in the next %.0f s"
            log.warning(message, ahead_s, TRUST_S, extra={"action": "clock"})
        if passed - self._ahead_since < TRUST_S:
            return passed + self.offset
        self.offset, self._ahead_since = wall - passed, None
        return wall


@cache
def steady_clock() -> SteadyClock:
    """The one of this process."""
    offset = os.environ.get(OFFSET_VARIABLE)
    return SteadyClock(offset=None if offset is None else float(offset))
