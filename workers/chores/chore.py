"""A chore: work that a process repeats in a thread of its own, while it answers, scores or learns."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Self

from ragbandit.router.telemetry.routines import Routine, StoreOutage
from ragbandit.workers.running.context import Context


class Chore(ABC):
    #: the chore's task in words, for the thread's name and for log lines: "cannot <title>; trying again"
    title: str
    #: seconds from the end of a run to the next one
    every_s: float
    #: log lines of an outage; None for the usual ones
    outage: StoreOutage | None = None
    #: whether only processes that learn do the chore, since a store has few such processes
    of_learner: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        self.context = context

    @classmethod
    def of(cls, context: Context) -> Iterable[Self]:
        """The chores of this class that the process of `context` should do."""
        return [cls(context)]

    @abstractmethod
    def do(self) -> float | None:
        """Do the chore once. Returns the seconds until the next run; None for `every_s`. `outage` logs errors."""

    def end(self) -> None:  # noqa: B027 - most chores hold nothing
        """Called once, when the process ends."""

    def start(self) -> Routine:
        return Routine(self.title, self.do, every_s=self.every_s, at_end=self.end, outage=self.outage).start()
