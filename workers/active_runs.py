"""Active runs: the decisions that this worker process has in hand, and how to stop one of them."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from ragbandit.shared.types import ArmName, DecisionId

__all__ = ["ActiveRun", "ActiveRuns"]


@dataclass(kw_only=True, slots=True)
class ActiveRun:
    """One of them."""

    decision_id: DecisionId
    #: runs of the decision that began before
    tries: int
    #: known once its row was read
    arm: ArmName | None = None
    #: done once somebody wants it stopped
    stop: "Future[None]" = field(default_factory=Future)


class ActiveRuns:
    """The runs of this process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[DecisionId, ActiveRun] = {}

    def begin(self, decision_id: DecisionId, *, tries: int) -> ActiveRun:
        """This process has claimed a decision."""
        run = ActiveRun(decision_id=decision_id, tries=tries)
        with self._lock:
            self._runs[decision_id] = run
        return run

    @contextmanager
    def ending(self, run: ActiveRun) -> Iterator[None]:
        """The block runs it; with it the run ends."""
        try:
            yield
        finally:
            with self._lock:
                del self._runs[run.decision_id]

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop this run; False if it is not here, has ended, or was stopped before."""
        with self._lock:
            run = self._runs.get(decision_id)
            if run is None or run.stop.done():
                return False
            run.stop.set_result(None)
            return True

    def ids(self) -> list[DecisionId]:
        """The decisions in hand."""
        with self._lock:
            return list(self._runs)

    def most_tries(self) -> int:
        """The most runs that one of them had before; 0 where nothing is run."""
        with self._lock:
            return max((run.tries for run in self._runs.values()), default=0)

    def arms(self) -> list[ArmName]:
        """The arms at work, by name, each once."""
        with self._lock:
            return sorted({run.arm for run in self._runs.values() if run.arm is not None})
