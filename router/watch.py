"""Keeps the circuit breaker fed from the outcomes in the store, so that all routers on one store see the same."""

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select

from router.database import Database
from router.health import ArmHealth, Breaker, Ending
from router.settings import HealthSettings
from router.tables import decisions, outcomes
from router.types import ArmName, DecisionId

__all__ = ["Watch", "newest"]

log = logging.getLogger("ragbandit.health")

#: how far back the first read goes, seconds
FIRST_S = 3600.0
#: every read goes back that much behind the one before, for rows that were committed late and clocks that differ
OVERLAP_S = 3.0
#: newest outcomes that one read takes
MOST = 10_000


def newest(*, after: float) -> Select[Any]:
    """How the newest outcomes made after that time ended, newest first."""
    return (
        select(decisions.c.arm, outcomes.c.decision_id, outcomes.c.status, outcomes.c.stop_reason, outcomes.c.made_at)
        .join(decisions, decisions.c.id == outcomes.c.decision_id)
        .where(outcomes.c.made_at > after)
        .order_by(outcomes.c.made_at.desc())
        .limit(MOST)
    )


class Watch:
    """A Breaker and where its reading stands. `read` and `look` belong to one thread, `breaker` to all."""

    def __init__(self, database: Database, *, settings: HealthSettings) -> None:
        self.database = database
        self.breaker = Breaker(settings)
        self._looked: float | None = None
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
            # A clock that was set back reads further back.
            after = now - FIRST_S if self._looked is None else min(self._looked, now) - OVERLAP_S
            self.breaker.take(self._endings(after=after))
            self._looked = now
        return self.breaker.healths(arms, now=now)

    def _endings(self, *, after: float) -> list[Ending]:
        with self.database.read() as connection:
            rows = connection.execute(newest(after=after)).all()
        return [
            Ending(
                arm=ArmName(row.arm),
                decision_id=DecisionId(row.decision_id),
                status=row.status,
                stop_reason=row.stop_reason,
                made_at=row.made_at,
            )
            for row in rows
        ]

    def _say(self, health: ArmHealth) -> None:
        facts = {"action": "health", "arm": health.arm, "state": health.state, "failures": health.failures}
        if health.state == "open":
            log.warning("arm left out: its last outcomes failed", extra=facts)
        elif health.state == "half_open":
            log.info("arm on trial", extra=facts)
        else:
            log.info("arm offered again", extra=facts)
