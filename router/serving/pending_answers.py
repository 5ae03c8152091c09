"""Pending answers: callers that wait for a worker's outcome, by decision."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from ragbandit.router.types import DecisionId, Outcome

__all__ = ["PendingAnswers"]


class PendingAnswers:
    """Futures by decision id. Safe to use from several threads."""

    def __init__(self) -> None:
        self._futures: dict[str, list[Future[Outcome]]] = {}
        self._lock = threading.Lock()

    def add(self, decision_id: DecisionId) -> "Future[Outcome]":
        """A Future that `deliver` fulfils; take it out with `remove` after use."""
        future: Future[Outcome] = Future()
        with self._lock:
            self._futures.setdefault(decision_id, []).append(future)
        return future

    def remove(self, decision_id: DecisionId, future: "Future[Outcome]") -> None:
        """Stop waiting."""
        with self._lock:
            left = [one for one in self._futures.get(decision_id, []) if one is not future]
            if left:
                self._futures[decision_id] = left
            else:
                self._futures.pop(decision_id, None)

    def awaited(self) -> list[str]:
        """Decisions that a caller waits for."""
        with self._lock:
            return list(self._futures)

    def deliver(self, found: Mapping[str, Outcome]) -> None:
        """Give these outcomes to the callers that wait for them."""
        for key, outcome in found.items():
            with self._lock:
                futures = self._futures.pop(key, [])
            for future in futures:
                with suppress(InvalidStateError):  # a caller who gave up has cancelled it
                    future.set_result(outcome)
