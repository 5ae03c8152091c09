"""Notifier: best-effort notifications of the learner and of workers through Redis.

SQL has the facts, and whoever is notified looks there by himself too, every second or two.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from ragbandit.router.jobs.queue import Jobs
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import Decision, DecisionId, PolicyLabel

__all__ = ["Notifier"]

#: a failure is told by /ready that long, seconds
FAULT_S = 60.0

Reply = TypeVar("Reply")


class Notifier:
    """Notifies without ever failing, and without waiting for a Redis that failed a moment ago (outage.PAUSE_S)."""

    def __init__(self, jobs: Jobs, *, label: PolicyLabel) -> None:
        self._jobs, self._label = jobs, label
        #: notifications that did not reach Redis, those among them that were not tried
        self.failed_notifications = 0
        #: what was to be done -> when it failed last (time.monotonic) and why; not there once it succeeds
        self._failures: dict[str, tuple[float, str]] = {}

    def notify_learner(self) -> None:
        """There is something to learn."""
        self.attempt(lambda: self._jobs.enqueue_learn(self._label), what="wake the learner")

    def request_answer(self, decision: Decision) -> None:
        """A worker is wanted for this decision."""
        self.attempt(lambda: self._jobs.enqueue_answers([decision.id]), what="queue answers")

    def cancel(self, decision_id: DecisionId) -> None:
        """This decision is to be stopped: soon, wherever it is."""

        def send() -> None:
            self._jobs.publish(f"cancel:{decision_id}")
            self._jobs.enqueue_answers([decision_id])

        self.attempt(send, what="cancel answers")

    def fault(self) -> str | None:
        """What failed when it was last tried, within FAULT_S, and why; None: nothing."""
        failures = list(self._failures.items())
        recent = [f"cannot {what}: {why}" for what, (at, why) in failures if time.monotonic() < at + FAULT_S]
        return "; ".join(recent) or None

    def attempt(self, send: Callable[[], Reply], *, what: str = "notify") -> Reply | None:
        """The reply of Redis, or None if it cannot be reached or could not be reached a moment ago.

        what: for `fault`, after "cannot".
        """
        if not self._jobs.outage.paused:
            try:
                reply = send()
            except QueueError as error:  # logged by the outage, once
                self._failures[what] = (time.monotonic(), error.message)
            else:
                self._failures.pop(what, None)
                return reply
        self.failed_notifications += 1
        return None
