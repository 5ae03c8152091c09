"""Savings: what an answer cost less than the holdback's arm on average, for replies; an estimate, and no comparison.

The mean is over all outcomes of the arm that the hourly totals have: questions that the policy gave it and those of the
holdback alike. What the router saved in all is told by the report, which weighs them.
"""

import time
from collections.abc import Callable
from typing import Final

from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.totals.rows import totals_ever
from ragbandit.shared.evidence import FEWEST_EFFECTIVE
from ragbandit.shared.types import ArmName, Cost, PolicyLabel

#: how old the mean may become, seconds
_KEPT_S: Final = 60.0


class Savings:
    """The mean dollars of an answer by the holdback's arm. Read by one thread, used by all."""

    def __init__(
        self, database: Database, *, policy: PolicySettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._policy, self._clock = database, policy, clock
        self._read_at = float("-inf")
        #: None: there is no holdback, or too few outcomes of its arm tell dollars
        self.mean: float | None = None

    def refresh(self) -> None:
        """Read the mean where it is older than _KEPT_S. Raises StoreError."""
        if self._policy.holdback is None or self._clock() - self._read_at < _KEPT_S:
            return
        with self._database.read() as connection:
            arms = totals_ever(connection, policy=PolicyLabel(self._policy.label))
        self._read_at, of = self._clock(), arms.get(ArmName(self._policy.holdback.arm))
        known = of is not None and of.ended >= FEWEST_EFFECTIVE and of.dollars > 0.0
        self.mean = of.dollars / of.ended if of is not None and known else None

    def of(self, cost: Cost) -> float | None:
        """What an answer of this cost saved, in dollars, below 0 where it was dearer; None: it is not known."""
        return None if self.mean is None else self.mean - cost.dollars
