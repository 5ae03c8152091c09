"""The clock for times in rows and for the ends of tasks, on which the hosts of a store must agree."""

import time
from typing import Final

from ragbandit.shared.processes.steady_clock import SLACK_S, Clock, SteadyClock, steady_clock

#: dialect -> seconds since 1970 by the database's clock, which for SQLite is the clock of this host
CLOCK: Final = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "CAST(EXTRACT(epoch FROM clock_timestamp()) AS float8)",
}
#: shortest time between two measurements of the server's time, seconds
LOOK_S: Final = 10.0


class StoreClock:
    """The time of this host, unless its clock is more than SLACK_S ahead of PostgreSQL, whose time all hosts share.

    With SQLite, the clock may not be ahead of the steady clock, which ignores a jump for an hour.

    Only `measure` asks the database, so `now` can be called anywhere.
    """

    def __init__(
        self,
        server_time: Clock | None,
        *,
        steady: SteadyClock | None = None,
        wall: Clock = time.time,
        monotonic: Clock = time.monotonic,
    ) -> None:
        """server_time: reads the time of PostgreSQL, seconds since 1970, or raises StoreError; None for SQLite"""
        self._server_time, self._steady = server_time, steady or steady_clock()
        self._wall, self._monotonic = wall, monotonic
        #: the server's time minus `monotonic`, and the value of `monotonic` at which it was measured
        self._offset: float | None = None
        self._looked_at = 0.0

    def measure(self) -> None:
        """Measure the time of the server, unless it was measured less than LOOK_S ago. Raises StoreError."""
        is_measured = self._offset is not None and self._monotonic() < self._looked_at + LOOK_S
        if self._server_time is None or is_measured:
            return
        now = self._server_time()
        self._looked_at = self._monotonic()
        self._offset = now - self._looked_at

    def ahead_s(self) -> float:
        """Seconds by which the clock of this host is ahead; 0.0 if it is ahead by at most SLACK_S."""
        right = self._steady.now() if self._offset is None else self._offset + self._monotonic()
        ahead = self._wall() - right
        return ahead if ahead > SLACK_S else 0.0

    def now(self) -> float:
        return self._wall() - self.ahead_s()

    def corrected(self, made_at: float) -> float:
        """The time for a row whose time `made_at` comes from this host's clock."""
        ahead = self.ahead_s()
        return min(made_at, self._wall() - ahead) if ahead else made_at
