"""Notifier: tells learner and workers, through whatever queue there is, without ever failing."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from ragbandit.router.queue.memory_jobs import MemoryJobs, Silence
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId, PolicyLabel

if TYPE_CHECKING:  # they load redis, which a library without Redis does not have
    from ragbandit.router.queue.jobs import RedisJobs
    from ragbandit.router.queue.listener import Listener

Reply = TypeVar("Reply")

#: the queue as the router needs it
Jobs: TypeAlias = "RedisJobs | MemoryJobs"
#: notifications that arrive until it is closed
Subscription: TypeAlias = "Listener | Silence"
#: a failed notification is told by /ready that long, seconds
FAULT_S: Final = 60.0


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

    def request_answers(self, ids: Sequence[DecisionId]) -> None:
        """Workers are wanted for these decisions."""
        self.attempt(lambda: self._jobs.enqueue_answers(ids), what="queue answers")

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
