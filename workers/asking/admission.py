"""Admission of questions: a run asks several at the same time only while its budget is far."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ragbandit.strategies.base import Account
from ragbandit.workers.asking.stop import Stop


@dataclass(eq=False, kw_only=True, slots=True)
class OpenQuestion:
    """A question that is being asked."""

    #: expected dollars of its answers and scores
    expected: float
    #: what it has cost so far
    bill: Account = field(default_factory=Account)


class Admission:
    """Admits the questions of a run.

    Prices may have risen since the estimate. So the first question of a run with a budget is asked by itself. Later
    ones are expected to cost as much as the most expensive one so far, and they are asked at the same time only while
    twice that is left for all of them.
    """

    def __init__(self, stop: Stop, *, paid_before: float = 0.0) -> None:
        self._stop = stop
        #: dollars of the run
        self.spent = paid_before
        self._open: list[OpenQuestion] = []
        self._is_alone = False
        #: dollars of the most expensive question; None before one has ended
        self._most: float | None = None
        self._freed = asyncio.Condition()

    def pay(self, opened: OpenQuestion, *, account: Account) -> None:
        opened.bill.cost += account.cost
        self.spent += account.cost.dollars

    @asynccontextmanager
    async def admitted(self, *, expected: float, is_alone: bool) -> AsyncIterator[OpenQuestion | None]:
        """A block in which a question is asked, when it may be; None if the run has ended.

        expected: its dollars. is_alone: whether no other question is asked meanwhile
        """
        opened = OpenQuestion(expected=expected)
        async with self._freed:
            while self._stop.reason is None and self._open and not self._fits(opened, is_alone=is_alone):
                await self._freed.wait()
            if not self._open and not self._is_payable(opened):
                self._stop.end(f"the next question may pass the budget of {self._stop.budget:g} dollars")
            if self._stop.reason is None:
                self._open.append(opened)
                self._is_alone = is_alone
        if opened not in self._open:
            yield None
            return
        try:
            yield opened
        finally:
            self._open.remove(opened)
            self._is_alone = False
            self._most = max(self._most or 0.0, opened.bill.cost.dollars)
            async with self._freed:
                self._freed.notify_all()

    def _fits(self, opened: OpenQuestion, *, is_alone: bool) -> bool:
        """Whether the question may be asked while others are."""
        if is_alone or self._is_alone:
            return False
        if self._stop.budget is None:
            return True
        if self._most is None:
            return False
        return 2.0 * math.fsum(map(self._left_to_pay, (*self._open, opened))) <= self._stop.budget - self.spent

    def _is_payable(self, opened: OpenQuestion) -> bool:
        return self._stop.budget is None or self._left_to_pay(opened) <= self._stop.budget - self.spent

    def _left_to_pay(self, opened: OpenQuestion) -> float:
        return max(0.0, max(opened.expected, self._most or 0.0) - opened.bill.cost.dollars)
