"""Engines: what applies a function to all parts of a log, on one processor or many, and merges what comes back."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Protocol, TypeVar

__all__ = ["Engine", "Job", "Result", "SerialEngine"]

Job = TypeVar("Job")
Result = TypeVar("Result")


class Engine(Protocol):
    """What applies a function to all parts."""

    def reduce(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        merge: Callable[[Result, Result], Result],
        told: Callable[[int], None],
    ) -> Result:
        """The results of all jobs (one at least), merged in any order; told: how many jobs are done.

        `work` and `merge` may run in other processes, and again where one was lost. What they raise is raised here.
        """
        ...


class SerialEngine:
    """One part after the other, in this process."""

    def reduce(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        merge: Callable[[Result, Result], Result],
        told: Callable[[int], None],
    ) -> Result:
        """As `Engine` says."""

        def results() -> Iterator[Result]:
            for done, job in enumerate(jobs, start=1):
                yield work(job)
                told(done)

        return reduce(merge, results())
