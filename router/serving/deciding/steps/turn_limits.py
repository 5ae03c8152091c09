"""Turns beyond a limit of their task or session go to the cheapest arm, with `conversation.at_limit: cheapest`.

The edge counts what a task and a session have used (operation/turn_limits.py), and stores the limits with the question.
The cheapest arm is the one whose newest answers have cost the fewest dollars in the mean, and of equal ones the least
by `reward.cost`. An arm without an answer counts by the price of its model, and one without a price comes last.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.serving.deciding.steps.step import Batch, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.serving.setup.estimates import prices_of_arms, usual_dollars
from ragbandit.router.storage.access.reservations import newest_costs
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import ArmName, Decision, reached_limit

#: number of newest answers whose costs are compared, and seconds for which the means are used again
_NEWEST: Final = 1000
_FRESH_S: Final = 5.0


class TurnLimits(Step):
    """Gives these turns the cheapest arm."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._read_at = -math.inf
        #: arm -> (mean dollars, mean cost by `reward.cost`) of its newest answers
        self._means: dict[ArmName, tuple[float, float]] = {}

    def configure(self, served: ServedPolicy) -> None:
        settings = served.settings
        self.is_on = settings.conversation.at_limit == "cheapest"
        self._terms = settings.reward.cost
        prices = prices_of_arms(settings.worker_arms, generators=settings.named_generators)
        self._estimates = {ArmName(arm): usual_dollars(price) for arm, price in prices.items()}

    def before(self, batch: Batch) -> None:
        """Questions of which the kill switch or the caller has chosen the arm stay as they are."""
        for question in batch.questions:
            is_open = question.certain_arm is None and not question.query.forced
            if is_open and reached_limit(question.query.request) is not None:
                question.certain_arm = min(question.arms, key=self._cost)
                question.arms, question.arm_by = (question.certain_arm,), "limit"

    def _cost(self, arm: ArmName) -> tuple[float, float]:
        return self._means.get(arm) or (self._estimates.get(arm, math.inf), 0.0)

    def refresh(self, *, arms: Sequence[ArmName], now: float) -> None:
        if not self.is_on or abs(now - self._read_at) < _FRESH_S:
            return
        with self.database.look() as connection:
            costs = newest_costs(connection, most=_NEWEST)
        for arm, of_arm in costs.items():
            priced = fmean(cost_of_terms(steps, cost, terms=self._terms) for cost, steps in of_arm)
            self._means[arm] = fmean(cost.dollars for cost, _ in of_arm), priced
        self._means = {arm: mean for arm, mean in self._means.items() if arm in arms}
        self._read_at = now

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        reached = reached_limit(decision.query.request)
        if decision.arm_by == "limit" and reached is not None:
            yield f"A limit is reached, so the cheapest arm answers: {reached}. Nothing is learned from it."
