"""Keeps the circuit breaker fed from the outcomes in the store, so that all routers on one store see the same."""

import json
import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, and_, not_, select

from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.serving.circuit_breaker import ArmHealth, Breaker, Ending
from ragbandit.router.storage.database import LOCK_WAIT_S, Database
from ragbandit.router.storage.tables import decisions, outcomes
from ragbandit.router.types import IMPORTED, ArmName, DecisionId

__all__ = ["Watch", "newest"]

log = logging.getLogger("ragbandit.health")

#: every read goes back that much behind the one before, for rows that were committed a little late
OVERLAP_S = 3.0
#: and once in so many seconds
THOROUGH_EVERY_S = 10.0
#: that much behind the last of these: for writers that waited for a lock, and clocks of workers that are behind
LATE_S = LOCK_WAIT_S + 5.0
#: outcomes that lie further ahead of the reader's clock are read when it gets there
AHEAD_S = 300.0
#: newest outcomes that one read takes
MOST = 10_000


def newest(*, after: float, until: float) -> Select[Any]:
    """How the newest outcomes made in that time ended, newest first. Those of imported logs are not among them."""
    imported = and_(outcomes.c.stop_reason == IMPORTED, outcomes.c.made_by.contains(f'"{IMPORTED}"'))
    return (
        select(
            decisions.c.arm,
            decisions.c.budget,
            outcomes.c.decision_id,
            outcomes.c.status,
            outcomes.c.stop_reason,
            outcomes.c.answer.is_(None).label("empty"),
            outcomes.c.made_at,
        )
        .join(decisions, decisions.c.id == outcomes.c.decision_id)
        .where(outcomes.c.made_at > after, outcomes.c.made_at <= until, not_(imported))
        .order_by(outcomes.c.made_at.desc())
        .limit(MOST)
    )


class Watch:
    """A Breaker and where its reading stands. `read` and `look` belong to one thread, `breaker` to all.

    seconds: the service's budget for one answer.
    """

    def __init__(self, database: Database, *, settings: HealthSettings, seconds: float) -> None:
        self.database = database
        self.seconds = seconds
        self.breaker = Breaker(settings)
        self._looked: float | None = None
        self._thorough = 0.0
        #: outcomes that were taken and may be read again, with the times they tell
        self._taken: dict[DecisionId, float] = {}
        self._states: dict[ArmName, str] = {}

    def look(self, arms: Sequence[ArmName], *, now: float) -> None:
        """`read`, and log which of these arms have another state than at the last look. Raises StoreError."""
        for health in self.read(arms, now=now):
            if self._states.get(health.arm, "closed") != health.state:
                self._say(health)
            self._states[health.arm] = health.state

    def read(self, arms: Sequence[ArmName], *, now: float) -> list[ArmHealth]:
        """Where these arms stand, after the outcomes that came since the last time. Raises StoreError.

        With the breaker turned off nothing is read.
        """
        if self.breaker.settings.failures > 0:
            if self._looked is None or now < self._looked - OVERLAP_S:
                self._begin(now=now)  # of a clock that was set back, what was taken would lie ahead
            elif now >= self._thorough + THOROUGH_EVERY_S:
                self._take(self.breaker, after=self._thorough - LATE_S, now=now)
                self._thorough = now
            else:
                self._take(self.breaker, after=self._looked - OVERLAP_S, now=now)
            self._looked = now
        return self.breaker.healths(arms, now=now)

    def _begin(self, *, now: float) -> None:
        breaker = Breaker(self.breaker.settings)
        self._taken = {}
        self._take(breaker, after=now - COUNTED_S, now=now)
        self.breaker, self._thorough = breaker, now

    def _take(self, breaker: Breaker, *, after: float, now: float) -> None:
        with self.database.read() as connection:
            rows = connection.execute(newest(after=after, until=now + AHEAD_S)).all()
        breaker.take(self._ending(row, now=now) for row in rows if row.decision_id not in self._taken)
        kept = {key: made_at for key, made_at in self._taken.items() if made_at > now - THOROUGH_EVERY_S - LATE_S}
        self._taken = kept | {row.decision_id: row.made_at for row in rows}

    def _ending(self, row: Row[Any], *, now: float) -> Ending:
        return Ending(
            arm=ArmName(row.arm),
            decision_id=DecisionId(row.decision_id),
            status=row.status,
            stop_reason=row.stop_reason,
            empty=row.empty,
            hurried=self._hurried(row.budget),
            # Of a clock that is ahead: what is here now was made before.
            made_at=min(row.made_at, now),
        )

    def _hurried(self, budget: str) -> bool:
        try:
            asked = json.loads(budget).get("seconds")
            return asked is not None and asked < self.seconds
        except (AttributeError, TypeError, ValueError):
            return True  # a broken row proves nothing of its arm

    def _say(self, health: ArmHealth) -> None:
        facts = {"action": "health", "arm": health.arm, "state": health.state, "failures": health.failures}
        if health.state == "open":
            log.warning("arm left out: its last outcomes failed", extra=facts)
        elif health.state == "half_open":
            log.info("arm on trial", extra=facts)
        else:
            log.info("arm offered again", extra=facts)
