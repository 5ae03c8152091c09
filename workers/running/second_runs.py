"""When a worker runs decisions whose first run ended a process: each by itself, and for at most half of the time."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ragbandit.router.storage.jobs.answers import AnswerQueue
from ragbandit.shared.processes.steady_clock import steady_clock

#: seconds for which a decision waits for its second run behind others. Then a worker claims no new decision until its
#: runs have ended, and runs the waiting one by itself
AGAIN_S: Final = 10.0
#: seconds between two queries of the queue
LOOK_S: Final = 1.0


@dataclass(kw_only=True)
class SecondRuns:
    """After a second run, only new decisions run for as long as that run and its wait took. Not thread-safe."""

    now: Callable[[], float] = time.monotonic
    _looked_at: float = -math.inf
    _waits: bool = False
    #: time since which this worker claims no decision, so that a second run can begin; None while it claims decisions
    _held_since: float | None = None
    _next_at: float = -math.inf

    def are_due(self, queue: AnswerQueue) -> bool:
        """Whether a decision that waits for its second run precedes new decisions. Raises StoreError."""
        now = self.now()
        if now < self._next_at:
            return False
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self._waits = queue.has_interrupted(before=steady_clock().now() - AGAIN_S)
        if not self._waits:
            self._held_since = None
        return self._waits

    def hold(self) -> None:
        """Count the time from now on as time of the second run: the worker claims no new decision."""
        if self._held_since is None:
            self._held_since = self.now()

    def forget(self) -> None:
        """Call this if another process has claimed the waiting decision."""
        self._waits, self._held_since = False, None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The block in which this process does a second run."""
        began = self.now() if self._held_since is None else self._held_since
        try:
            yield
        finally:
            ended = self.now()
            self._next_at = ended + (ended - began)
            self.forget()
            self._looked_at = -math.inf
