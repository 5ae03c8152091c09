"""The time for whatever deletes, gives up or pays again, which the wrong clock of one host must not decide."""

import math
import time
from typing import Final

from sqlalchemy import func, select

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import clock
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.processes.steady_clock import TRUST_S, Clock, SteadyClock, steady_clock

#: time after the newest decision for which the clock of a new process is believed at once, seconds
QUIET_S: Final = 86_400.0


class DeadlineClock:
    """Times in seconds since 1970.

    `now` is the time of this process's steady clock, which ignores jumps ahead for TRUST_S. On PostgreSQL it is not
    later than the time of the server, which all hosts share.
    """

    def __init__(
        self,
        database: Database,
        *,
        steady: SteadyClock | None = None,
        wall: Clock = time.time,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self.database = database
        self._steady, self._wall, self._monotonic = steady or steady_clock(), wall, monotonic
        self._began = monotonic()
        #: time of the newest decision when the process began; infinite if there was none
        self._newest: float | None = None

    def now(self) -> float:
        """Time that decides what is due. Raises StoreError."""
        now = self._steady.now()
        if self.database.is_sqlite:
            return now
        with self.database.read() as connection:
            return min(now, float(connection.execute(select(clock(self.database))).scalar_one()))

    def for_deletion(self) -> float:
        """Time that decides what is too old. Raises StoreError.

        With SQLite, the host's clock may have been wrong since the process began. So this time is, for TRUST_S, at most
        QUIET_S after the newest decision that was stored then, plus the time since then.
        """
        now, passed = self.now(), self._monotonic() - self._began
        if not self.database.is_sqlite or passed >= TRUST_S:
            return now
        if self._newest is None:
            with self.database.read() as connection:
                newest = connection.execute(select(func.max(decisions.c.made_at))).scalar()
            self._newest = math.inf if newest is None else float(newest)
        return min(now, self._newest + QUIET_S + passed)

    def ahead_s(self) -> float:
        """Seconds by which the host's clock is ahead of the steady clock or of PostgreSQL. Raises StoreError."""
        return self._wall() - self.now()
