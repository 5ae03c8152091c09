"""Compares the clock of this host with the database's: rows get the right time, and findings report a wrong clock.

The audit log records when the clock jumps ahead, and when it is right again.
"""

import logging
import platform

from ragbandit.router.storage.access.audit_log import CLOCK_ACTION, last_entry, record
from ragbandit.router.storage.sql.deadlines import DeadlineClock
from ragbandit.router.storage.sql.store_clock import LOOK_S
from ragbandit.shared.processes.steady_clock import SLACK_S
from ragbandit.workers.chores.chore import Chore

log = logging.getLogger("ragbandit.clock")


class StoreTime(Chore):
    """Measures the time of PostgreSQL, which rows get if the clock of this host is ahead."""

    title = "measure the time of the store"
    every_s = LOOK_S
    of_learner = False

    def do(self) -> None:
        self.context.store.database.clock.measure()


class HostClock(Chore):
    """Records in the audit log when this host's clock gets ahead of `context.deadlines`, and when it is right again."""

    title = "look at the clock of this host"
    every_s = 5.0

    def do(self) -> None:
        record_clock_change(self.context.deadlines, host=platform.node())


def record_clock_change(clock: DeadlineClock, *, host: str) -> None:
    """Record in the audit log if the host's clock has got ahead, or is right again. Raises StoreError."""
    ahead_s = clock.ahead_s()
    with clock.database.read() as connection:
        last = last_entry(connection, action=CLOCK_ACTION, target=host)
    if (ahead_s > SLACK_S) == (last is not None and last.facts.get("ahead_s") != 0):
        return
    ahead_s = round(ahead_s) if ahead_s > SLACK_S else 0
    with clock.database.write() as connection:
        record(connection, actor="service", action=CLOCK_ACTION, target=host, facts={"ahead_s": ahead_s})
    log.warning("the clock of this host is %.0f s ahead", ahead_s, extra={"action": "clock"})
