"""Active runs: the decisions that this worker process runs now, and how to stop one of them."""

import threading
from concurrent.futures import Future

from ragbandit.router.types import ArmName, Decision, DecisionId

__all__ = ["ActiveRuns"]


class ActiveRuns:
    """The runs of this process, each with its arm and the Future that stops it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claimed: set[DecisionId] = set()
        self._runs: dict[DecisionId, tuple[ArmName, Future[None]]] = {}

    def claim(self, decision_id: DecisionId) -> bool:
        """Keep other threads of this process from this decision until `release`; False if one of them has it."""
        with self._lock:
            if decision_id in self._claimed:
                return False
            self._claimed.add(decision_id)
            return True

    def claimed(self) -> set[DecisionId]:
        """The decisions that a thread of this process has in hand."""
        with self._lock:
            return set(self._claimed)

    def begin(self, decision: Decision) -> "Future[None]":
        """The run of a claimed decision begins. The Future is done once `stop` was called."""
        stop: Future[None] = Future()
        with self._lock:
            self._runs[decision.id] = (decision.arm, stop)
        return stop

    def end(self, decision_id: DecisionId) -> None:
        """The run has ended."""
        with self._lock:
            del self._runs[decision_id]

    def release(self, decision_id: DecisionId) -> None:
        """The thread that claimed the decision is done with it."""
        with self._lock:
            self._claimed.discard(decision_id)

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop this run; False if it has not begun here, has ended, or was stopped before."""
        with self._lock:
            run = self._runs.get(decision_id)
            if run is None or run[1].done():
                return False
            run[1].set_result(None)
            return True

    def ids(self) -> list[DecisionId]:
        """The decisions whose runs have begun."""
        with self._lock:
            return list(self._runs)

    def arms(self) -> list[ArmName]:
        """The arms at work, by name, each once."""
        with self._lock:
            return sorted({arm for arm, _ in self._runs.values()})
