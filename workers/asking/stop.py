"""When a run ends before its last question: the verdict is known, the budget is spent, or an arm fails."""

import asyncio
import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ragbandit.router.comparison import CONFIDENCE

#: number of questions before the first look at the verdict
FIRST_LOOK: Final = 50


def planned_looks(questions: int) -> list[int]:
    """The numbers of questions after which the verdict is computed: 50, 100, 150, 200, 300, 400, 600, 800, ...

    With fewer looks a run would ask more questions after the verdict is known. More looks need wider intervals, since
    they share the probability of error. questions: number in the whole run.
    """
    steps = (FIRST_LOOK, *(step * 2**number for number in range(1, 40) for step in (FIRST_LOOK, FIRST_LOOK * 3 // 2)))
    return list(itertools.takewhile(lambda step: step < questions, steps))


def shared_confidence(questions: int) -> float:
    """Confidence of each look at the verdict, since all looks of a run share the error probability (Bonferroni)."""
    return 1.0 - (1.0 - CONFIDENCE) / (len(planned_looks(questions)) + 1)


@dataclass(kw_only=True)
class Stop:
    """When a run ends early, and why it did. By default every question is asked."""

    #: dollars that the answers may cost; None without a limit
    budget: float | None = None
    #: whether the verdict is known; called in a thread
    is_known: Callable[[], bool] = lambda: False
    #: numbers of answered questions after which `is_known` is called, ascending
    looks: Sequence[int] = ()
    #: number of failures of an arm in a row that end the run; None if failures never end it
    most_failures: int | None = None
    #: why the run ended; None before its end
    reason: str | None = None
    _looked: int = 0

    def end(self, reason: str) -> None:
        """End the run. The first reason stays."""
        self.reason = self.reason or reason

    def check_budget(self, spent: float) -> None:
        if self.budget is not None and spent >= self.budget:
            self.end(f"the budget of {self.budget:g} dollars is spent")

    async def look(self, answered: int) -> None:
        """End the run if a look at the verdict is due, and the verdict is known. answered: questions so far"""
        due = bisect_right(self.looks, answered)
        if due > self._looked and self.reason is None:
            self._looked = due
            if await asyncio.to_thread(self.is_known):
                self.reason = f"the verdict is known after {answered} questions"
