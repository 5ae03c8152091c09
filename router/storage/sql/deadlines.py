"""The time by which rows are deleted and work is given up or repeated, so that a host's wrong clock does no harm."""

import time
from typing import Final

from sqlalchemy import func, select

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import database_time
from ragbandit.router.storage.sql.positions import move_position, position_of
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.processes.steady_clock import TRUST_S, Clock, SteadyClock, steady_clock

#: time after the last time of deletion within which the clock of a new process is trusted at once, seconds
QUIET_S: Final = 86_400.0
#: time between two writes of the time of deletion, seconds
KEEP_S: Final = 60.0
_READER: Final = "deletion"


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
        #: time in the store when this process first called `for_deletion`; None before
        self._stored_at_start: float | None = None
        self._stored = 0.0  #: time that this process stored last

    def now(self) -> float:
        """The time for decisions about due work. Raises StoreError."""
        now = self._steady.now()
        if self.database.is_sqlite:
            return now
        with self.database.read() as connection:
            return min(now, float(connection.execute(select(database_time(self.database))).scalar_one()))

    def for_deletion(self) -> float:
        """Time against which ages of rows are measured. Raises StoreError.

        With SQLite, the host's clock may have been wrong since the process began. So the store has the latest time that
        was returned. For TRUST_S a process returns at most this time + QUIET_S + the time since the process began.
        """
        now, passed = self.now(), self._monotonic() - self._began
        if not self.database.is_sqlite:
            return now
        if self._stored_at_start is None:
            self._stored_at_start = self._stored = self._read()
        if passed < TRUST_S:
            now = min(now, self._stored_at_start + QUIET_S + passed)
        if now >= self._stored + KEEP_S:
            self._stored = now
            with self.database.write() as connection:
                move_position(connection, _READER, position={"at": now}, now=now)
        return now

    def _read(self) -> float:
        """The latest time of deletion; if none is stored, the time of the newest decision, or else the present time."""
        with self.database.read() as connection:
            stored = position_of(connection, _READER)
            newest = None if stored else connection.execute(select(func.max(decisions.c.made_at))).scalar()
        return float(stored["at"]) if stored else self.now() if newest is None else float(newest)

    def ahead_s(self) -> float:
        """Seconds by which the host's clock is ahead of the steady clock or of PostgreSQL. Raises StoreError."""
        return self._wall() - self.now()
