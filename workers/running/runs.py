"""Decisions that this process has claimed: those that have not begun, and active runs."""

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ragbandit.router.storage.jobs.answers import ClaimedDecision
from ragbandit.shared.types import ArmName, DecisionId


class ActiveRuns:
    """Decisions that this process has claimed: waiting to begin, running, or being scored.

    Safe to use from several threads. forget_s: seconds after which a claimed decision that has not begun is forgotten,
    since its caller no longer waits.
    """

    def __init__(self, *, forget_s: float = math.inf) -> None:
        self._lock = threading.Lock()
        self._forget_s = forget_s
        #: decision that is claimed and has not begun -> time.monotonic() of the claim
        self._claimed: dict[DecisionId, float] = {}
        self._runs: dict[DecisionId, ClaimedDecision] = {}

    def claim(self, ids: Sequence[DecisionId], *, most: int) -> list[DecisionId]:
        """Claim as many of these decisions, in their order, as fit into `most` claims. Returns the claimed ones."""
        now = time.monotonic()
        with self._lock:
            self._claimed = {key: since for key, since in self._claimed.items() if since >= now - self._forget_s}
            room = max(0, most - len(self._claimed) - len(self._runs))
            claimed = [key for key in ids if key not in self._runs][:room]
            self._claimed |= dict.fromkeys(claimed, now)
        return claimed

    def unclaim(self, ids: Iterable[DecisionId]) -> None:
        with self._lock:
            for key in ids:
                self._claimed.pop(key, None)

    def begin(self, run: ClaimedDecision, *, if_claimed: bool = False) -> ClaimedDecision | None:
        """Count the run as active. None if its decision runs already, or, with `if_claimed`, is not claimed here."""
        with self._lock:
            is_claimed = self._claimed.pop(run.decision_id, None) is not None
            if run.decision_id in self._runs or (if_claimed and not is_claimed):
                return None
            self._runs[run.decision_id] = run
        return run

    @contextmanager
    def ending(self, run: ClaimedDecision) -> Iterator[None]:
        """Remove the run at the end of the block."""
        try:
            yield
        finally:
            with self._lock:
                del self._runs[run.decision_id]

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop the run of this decision. Returns False if none runs here, or if the run was stopped before."""
        with self._lock:
            run = self._runs.get(decision_id)
            if run is None or run.stop.done():
                return False
            run.stop.set_result(None)
            return True

    def claimed_ids(self) -> list[DecisionId]:
        """All decisions that this process has claimed, begun or not."""
        with self._lock:
            oldest = time.monotonic() - self._forget_s
            return [*self._runs, *(key for key, since in self._claimed.items() if since >= oldest)]

    def running_ids(self) -> list[DecisionId]:
        """The decisions that have begun."""
        with self._lock:
            return list(self._runs)

    def most_tries(self) -> int:
        """Largest number of earlier runs of a decision that runs now; 0 if none runs."""
        with self._lock:
            return max((run.tries for run in self._runs.values()), default=0)

    def arms(self) -> list[ArmName]:
        """The arms of all runs whose arm is known, sorted; an arm with several runs is repeated."""
        with self._lock:
            return sorted(run.arm for run in self._runs.values() if run.arm is not None)
