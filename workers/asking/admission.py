"""Admission of questions: a run asks several at the same time only while much of its budget is left."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ragbandit.strategies.base import Account
from ragbandit.workers.asking.stop import Stop


class Admission:
    """Admits the questions of a run.

    Prices may have risen since the estimate. So the first question of a run with a budget is asked by itself. Each
    later question is expected to cost at least as much as the most expensive question so far. Questions are asked at
    the same time only if the budget left is twice the sum of what they are expected to cost yet.
    """

    def __init__(self, stop: Stop, *, paid_before: float = 0.0) -> None:
        self._stop = stop
        #: dollars of the run
        self.spent = paid_before
        #: (cost so far, expected dollars) of each question that is being asked
        self._open: list[tuple[Account, float]] = []
        self._is_alone = False
        #: dollars of the most expensive question; None before one has ended
        self._most: float | None = None
        self._freed = asyncio.Condition()

    def pay(self, bill: Account, *, account: Account) -> None:
        """Add the cost of an answer or a score to the bill of its question."""
        bill.cost += account.cost
        self.spent += account.cost.dollars

    @asynccontextmanager
    async def admit(self, *, expected: float, is_alone: bool) -> AsyncIterator[Account | None]:
        """A block that begins once the question may be asked. Yields its bill; None if the run has ended.

        expected: dollars. is_alone: whether no other question may be asked at the same time
        """
        bill, is_admitted = Account(), False
        async with self._freed:
            while self._stop.reason is None and self._open and not self._fits(expected, is_alone=is_alone):
                await self._freed.wait()
            if not self._open and not self._is_payable(expected):
                self._stop.end(f"the next question may pass the budget of {self._stop.budget:g} dollars")
            if self._stop.reason is None:
                self._open.append((bill, expected))
                self._is_alone, is_admitted = is_alone, True
        if not is_admitted:
            yield None
            return
        try:
            yield bill
        finally:
            self._open = [one for one in self._open if one[0] is not bill]
            self._is_alone = False
            self._most = max(self._most or 0.0, bill.cost.dollars)
            async with self._freed:
                self._freed.notify_all()

    def _fits(self, expected: float, *, is_alone: bool) -> bool:
        """Whether a question may be asked while others are being asked."""
        if is_alone or self._is_alone:
            return False
        if self._stop.budget is None:
            return True
        if self._most is None:
            return False
        left = [self._most_left_to_pay(of, paid=bill.cost.dollars) for bill, of in self._open]
        return 2.0 * math.fsum((*left, self._most_left_to_pay(expected))) <= self._stop.budget - self.spent

    def _is_payable(self, expected: float) -> bool:
        return self._stop.budget is None or self._most_left_to_pay(expected) <= self._stop.budget - self.spent

    def _most_left_to_pay(self, expected: float, *, paid: float = 0.0) -> float:
        return max(0.0, max(expected, self._most or 0.0) - paid)
