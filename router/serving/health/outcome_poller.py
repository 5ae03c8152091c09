"""Outcome poller: reads the newest outcomes from the store into a circuit breaker."""

import json
import logging
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Final

from sqlalchemy import Row, Select, case, or_, select

from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.serving.health.circuit_breaker import ArmHealth, CircuitBreaker, OutcomeSignal
from ragbandit.router.serving.health.gone_models import GoneModels
from ragbandit.router.storage.sql.database import LOCK_WAIT_S, Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.model_servers.failures import Failure, failure_of
from ragbandit.shared.types import IMPORTED, ArmName, CircuitState, DecisionId

log = logging.getLogger("ragbandit.health")

#: seconds by which a read overlaps the previous one, for rows that were committed late
OVERLAP_S = 3.0
#: seconds between reads with the longer overlap LATE_S
THOROUGH_EVERY_S = 10.0
#: the longer overlap, seconds, for writers that waited for a lock, and workers whose clocks are behind
LATE_S = LOCK_WAIT_S + 5.0
#: maximum number of outcomes in one read
MOST = 10_000
_NEWS: Final[Mapping[CircuitState, str]] = {
    "open": "arm suspended after failures; it is tried again after health.cool_down_s or the pause its server set",
    "half_open": "arm on probation: one question may try it",
    "closed": "arm healthy again: it is offered to all questions",
}


def select_newest(*, after: float, until: float) -> Select[Any]:
    """Select the outcomes made in this period, newest first."""
    is_read = or_(outcomes.c.status == "failed", outcomes.c.stop_reason == IMPORTED)
    made_by = case((is_read, outcomes.c.made_by)).label("made_by")
    return (
        select(*decisions.c["arm", "budget", "tenant", "api_key"], outcomes.c.answer.is_(None).label("empty"), made_by)
        .add_columns(decisions.c.body_hash, decisions.c.made_at.label("decided_at"))
        .add_columns(*outcomes.c["decision_id", "run_by", "status", "stop_reason", "made_at"])
        .join_from(outcomes, decisions, decisions.c.id == outcomes.c.decision_id)
        .where(outcomes.c.made_at > after, outcomes.c.made_at <= until)
        .order_by(outcomes.c.made_at.desc())
        .limit(MOST)
    )


class OutcomePoller:
    """Reads the newest outcomes into `breaker`. Only one thread may call `poll`. seconds: time budget of answers."""

    def __init__(
        self, database: Database, *, settings: HealthSettings, seconds: float, gone: GoneModels | None = None
    ) -> None:
        self.database, self.seconds, self.gone = database, seconds, gone
        self.breaker = CircuitBreaker(settings)
        self._lock = Lock()
        self._read_at: float | None = None
        self._long_read_at = 0.0
        #: decision of a recorded outcome that may be read again -> time of the outcome
        self._recorded: dict[DecisionId, float] = {}
        self._states: dict[ArmName, str] = {}
        self._suspended: set[tuple[ArmName, str]] = set()

    def poll(self, arms: Sequence[ArmName], *, now: float) -> None:
        """Call `read`, and log changes of state. Raises StoreError."""
        for health in self.read(arms, now=now):
            if self._states.get(health.arm, "closed") != health.state and health.arm not in self.breaker.gone:
                fields = {"action": "health", "arm": health.arm, "state": health.state, "failures": health.failures}
                level = logging.WARNING if health.state == "open" else logging.INFO
                log.log(level, _NEWS[health.state], extra=fields)
            self._states[health.arm] = health.state
        suspended = self.breaker.suspended(arms, now=now)
        for arm, tenant in sorted(suspended - self._suspended)[:5]:  # at most five log lines per poll
            fields = {"action": "health", "arm": arm, "tenant": tenant}
            log.warning("arm suspended for one tenant: the last outcomes that it reported all failed", extra=fields)
        self._suspended = suspended

    def read(self, arms: Sequence[ArmName], *, now: float) -> list[ArmHealth]:
        """Read the newest outcomes, unless the breaker is off. Returns the state of these arms. Raises StoreError."""
        if self.breaker.settings.failures > 0:
            with self._lock:
                self._read(now)
        return self.breaker.healths(arms, now=now)

    def _read(self, now: float) -> None:
        breaker, recorded = self.breaker, self._recorded
        long_read_at = self._long_read_at
        if self._read_at is None or now < self._read_at - OVERLAP_S:
            # This is the first read, or the clock was set back, so that recorded outcomes would be in the future.
            breaker, recorded = CircuitBreaker(breaker.settings), {}
            after, long_read_at = now - COUNTED_S, now
        elif now >= long_read_at + THOROUGH_EVERY_S:
            after, long_read_at = long_read_at - LATE_S, now
        else:
            after = self._read_at - OVERLAP_S
        with self.database.read() as connection:
            # Outcomes by a clock that is more than 300 s ahead are read later.
            rows = [
                row
                for row in connection.execute(select_newest(after=after, until=now + 300.0))
                if row.stop_reason != IMPORTED or IMPORTED not in object_or_empty(row.made_by)
            ]
        breaker.record(self._signal(row, now=now) for row in rows if row.decision_id not in recorded)
        if self.gone is not None:
            self.gone.read()
            self.gone.note([row for row in rows if row.decision_id not in recorded], now=now)
            breaker.gone = self.gone.retired
        recent = {key: made_at for key, made_at in recorded.items() if made_at > now - THOROUGH_EVERY_S - LATE_S}
        self._recorded = recent | {row.decision_id: row.made_at for row in rows}
        self.breaker = breaker
        self._read_at, self._long_read_at = now, long_read_at

    def _signal(self, row: Row[Any], *, now: float) -> OutcomeSignal:
        return OutcomeSignal(
            arm=ArmName(row.arm),
            decision_id=DecisionId(row.decision_id),
            status=row.status,
            stop_reason=row.stop_reason,
            empty=row.empty,
            short_deadline=self._short_deadline(row.budget),
            made_at=min(row.made_at, now),  # a worker's clock may be ahead
            reporter=None if row.run_by == "worker" else row.tenant,
            suspends_s=self._suspends_s(failure_of(object_or_empty(row.made_by))),
        )

    def _suspends_s(self, failure: Failure | None) -> float:
        if failure is None:
            return 0.0
        cool_down_s = self.breaker.settings.cool_down_s if failure.kind == "unreachable" else 0.0
        return max(cool_down_s, failure.retry_after_s or 0.0)

    def _short_deadline(self, budget: str) -> bool:
        try:
            seconds = json.loads(budget).get("seconds")
            return seconds is not None and seconds < self.seconds
        except (AttributeError, TypeError, ValueError):
            return True  # a damaged row does not count against its arm
