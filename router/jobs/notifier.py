"""How a router tells learner and workers to look: through Redis, which may be gone without anything being lost."""

import logging
import time

from ragbandit.router.errors import QueueError
from ragbandit.router.jobs.queue import Jobs
from ragbandit.router.types import DecisionId, PolicyLabel

__all__ = ["Bell"]

log = logging.getLogger("ragbandit.bell")

#: how long Redis is left alone after it could not be reached
BREAK_S = 2.0
#: least time between two warnings of the same outage
QUIET_S = 10.0


class Bell:
    """Rings without ever failing: what is not rung is found by the sweep, later.

    answer_s: how long an answer may take.
    """

    def __init__(self, jobs: Jobs, *, label: PolicyLabel, answer_s: float) -> None:
        self._jobs, self._label, self._answer_s = jobs, label, answer_s
        #: times that Redis could not be reached
        self.unrung = 0
        self._said = -QUIET_S
        self._quiet_until = 0.0

    def learn(self) -> None:
        """There is something to learn."""
        if time.monotonic() < self._quiet_until:
            return  # Redis was just found gone or hanging: the sweep rings, callers must not wait for it
        try:
            self._jobs.ring(self._label)
        except QueueError as error:
            self._not_rung("learn", error)

    def answer(self, decision_id: DecisionId) -> None:
        """A worker is wanted for this decision."""
        try:
            self._jobs.ask_answer(decision_id, timeout_s=self._answer_s)
        except QueueError as error:
            self._not_rung("answer", error)

    def cancel(self, decision_id: DecisionId) -> None:
        """This decision is to be stopped: soon, wherever it is."""
        try:
            # The worker that runs it first: Redis may have forgotten that it does, and then another one is asked.
            self._jobs.tell(f"cancel:{decision_id}")
            self._jobs.ask_answer(decision_id, timeout_s=self._answer_s)
            self._jobs.hurry(decision_id)
        except QueueError as error:
            self._not_rung("cancel", error)

    def _not_rung(self, what: str, error: QueueError) -> None:
        self.unrung += 1
        self._quiet_until = time.monotonic() + BREAK_S
        if time.monotonic() > self._said + QUIET_S:  # once in a while: an outage has thousands of these
            self._said = time.monotonic()
            facts = {"action": "ring", "queue": what, "times": self.unrung, "reason": str(error)}
            log.log(self._jobs.alarm, "bell not rung: the sweep will", extra=facts)
