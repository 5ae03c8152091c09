"""Arm health: a poller that feeds the circuit breaker from the outcomes in the store.

All routers on one store read the same outcomes and so exclude the same arms.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, and_, not_, select

from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.serving.health.circuit_breaker import ArmHealth, CircuitBreaker, OutcomeSignal
from ragbandit.router.storage.sql.database import LOCK_WAIT_S, Database
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.types import IMPORTED, ArmName, DecisionId

log = logging.getLogger("ragbandit.health")

#: seconds by which a read overlaps the one before, for rows that were committed late
OVERLAP_S = 3.0
#: seconds between reads with the longer overlap
THOROUGH_EVERY_S = 10.0
#: the longer overlap, seconds: for writers that waited for a lock, and workers whose clocks are behind
LATE_S = LOCK_WAIT_S + 5.0
#: outcomes further than this ahead of the reader's clock are read later, seconds
AHEAD_S = 300.0
#: log lines of one read about arms that are suspended for a tenant alone
MOST_LOGGED = 5
#: most outcomes in one read
MOST = 10_000


def newest(*, after: float, until: float) -> Select[Any]:
    """The query for the outcomes made in that time, newest first, without those of imported logs."""
    imported = and_(outcomes.c.stop_reason == IMPORTED, outcomes.c.made_by.contains(f'"{IMPORTED}"'))
    return (
        select(
            decisions.c.arm,
            decisions.c.budget,
            decisions.c.tenant,
            outcomes.c.run_by,
            outcomes.c.decision_id,
            outcomes.c.status,
            outcomes.c.stop_reason,
            outcomes.c.answer.is_(None).label("empty"),
            outcomes.c.made_at,
        )
        .join_from(outcomes, decisions, decisions.c.id == outcomes.c.decision_id)
        .where(outcomes.c.made_at > after, outcomes.c.made_at <= until, not_(imported))
        .order_by(outcomes.c.made_at.desc())
        .limit(MOST)
    )


class OutcomePoller:
    """Poller of the store's newest outcomes, and the CircuitBreaker that it feeds.

    `read` and `poll` must be called from one thread; `breaker` is safe to use from all.
    seconds: the service's time budget for one answer.
    """

    def __init__(self, database: Database, *, settings: HealthSettings, seconds: float) -> None:
        self.database = database
        self.seconds = seconds
        self.breaker = CircuitBreaker(settings)
        self._read_at: float | None = None
        self._long_read_at = 0.0
        #: outcomes that were recorded and may be read again -> when they were made
        self._recorded: dict[DecisionId, float] = {}
        self._states: dict[ArmName, str] = {}
        self._suspended: set[tuple[ArmName, str]] = set()

    def poll(self, arms: Sequence[ArmName], *, now: float) -> None:
        """`read`, and log which of these arms have changed their state. Raises StoreError."""
        for health in self.read(arms, now=now):
            if self._states.get(health.arm, "closed") != health.state:
                self._log(health)
            self._states[health.arm] = health.state
        suspended = self.breaker.suspended(arms, now=now)
        for arm, tenant in sorted(suspended - self._suspended)[:MOST_LOGGED]:
            facts = {"action": "health", "arm": arm, "tenant": tenant}
            log.warning("arm suspended for one tenant: the last outcomes that it reported all failed", extra=facts)
        self._suspended = suspended

    def read(self, arms: Sequence[ArmName], *, now: float) -> list[ArmHealth]:
        """State of these arms after the outcomes that came since the last read. Raises StoreError.

        With the circuit breaker turned off nothing is read.
        """
        if self.breaker.settings.failures > 0:
            if self._read_at is None or now < self._read_at - OVERLAP_S:
                self._begin(now=now)  # the clock was set back: what was recorded would lie in the future
            elif now >= self._long_read_at + THOROUGH_EVERY_S:
                self._take(self.breaker, after=self._long_read_at - LATE_S, now=now)
                self._long_read_at = now
            else:
                self._take(self.breaker, after=self._read_at - OVERLAP_S, now=now)
            self._read_at = now
        return self.breaker.healths(arms, now=now)

    def _begin(self, *, now: float) -> None:
        breaker = CircuitBreaker(self.breaker.settings)
        self._recorded = {}
        self._take(breaker, after=now - COUNTED_S, now=now)
        self.breaker, self._long_read_at = breaker, now

    def _take(self, breaker: CircuitBreaker, *, after: float, now: float) -> None:
        with self.database.read() as connection:
            rows = connection.execute(newest(after=after, until=now + AHEAD_S)).all()
        breaker.record(self._signal(row, now=now) for row in rows if row.decision_id not in self._recorded)
        recent = {key: made_at for key, made_at in self._recorded.items() if made_at > now - THOROUGH_EVERY_S - LATE_S}
        self._recorded = recent | {row.decision_id: row.made_at for row in rows}

    def _signal(self, row: Row[Any], *, now: float) -> OutcomeSignal:
        return OutcomeSignal(
            arm=ArmName(row.arm),
            decision_id=DecisionId(row.decision_id),
            status=row.status,
            stop_reason=row.stop_reason,
            empty=row.empty,
            short_deadline=self._short_deadline(row.budget),
            # A worker's clock may be ahead: what is in the store was made before now.
            made_at=min(row.made_at, now),
            reporter=None if row.run_by == "worker" else row.tenant,
        )

    def _short_deadline(self, budget: str) -> bool:
        try:
            seconds = json.loads(budget).get("seconds")
            return seconds is not None and seconds < self.seconds
        except (AttributeError, TypeError, ValueError):
            return True  # a damaged row says nothing about its arm

    def _log(self, health: ArmHealth) -> None:
        facts = {"action": "health", "arm": health.arm, "state": health.state, "failures": health.failures}
        if health.state == "open":
            log.warning(
                "arm suspended: its last outcomes all failed; it is tried again after health.cool_down_s", extra=facts
            )
        elif health.state == "half_open":
            log.info("arm on probation: one question may try it", extra=facts)
        else:
            log.info("arm healthy again: it is offered to all questions", extra=facts)
