"""What a worker process is at: the decisions that it runs now, and how to stop one of them."""

import threading
from concurrent.futures import Future

from ragbandit.router.types import ArmName, Decision, DecisionId

__all__ = ["Running"]


class Running:
    """The decisions under way, each with its arm and the Future that stops it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[DecisionId, tuple[ArmName, Future[None]]] = {}

    def begin(self, decision: Decision) -> "Future[None] | None":
        """Its stop, done once `stop` was called; None where another thread of this process is at this decision."""
        stop: Future[None] = Future()
        with self._lock:
            if decision.id in self._runs:
                return None
            self._runs[decision.id] = (decision.arm, stop)
            return stop

    def end(self, decision_id: DecisionId) -> None:
        """The thread that began it is done with it."""
        with self._lock:
            del self._runs[decision_id]

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop this one; False if it is not under way here, or was stopped before."""
        with self._lock:
            run = self._runs.get(decision_id)
            if run is None or run[1].done():
                return False
            run[1].set_result(None)
            return True

    def ids(self) -> list[DecisionId]:
        """The decisions under way."""
        with self._lock:
            return list(self._runs)

    def arms(self) -> list[ArmName]:
        """The arms at work, by name, each once."""
        with self._lock:
            return sorted({arm for arm, _ in self._runs.values()})
