"""Notifier: tells learner and workers, through whatever queue there is, without ever failing; queues without Redis."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from ragbandit.router.queue.presence import QueueWork, WorkerState
from ragbandit.router.queue.redis_server import Outage
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId, PolicyLabel

if TYPE_CHECKING:  # they load redis, which a library without Redis does not have
    from ragbandit.router.queue.jobs import Listener, RedisJobs

Reply = TypeVar("Reply")

#: the queue as the router needs it
Jobs: TypeAlias = "RedisJobs | MemoryJobs"
#: time for which /ready reports a failed notification, seconds
FAULT_S: Final = 60.0


class Notifier:
    """Notifies without ever failing, and without waiting for a Redis that failed a moment ago (outage.PAUSE_S)."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        #: notifications that did not reach Redis, those among them that were not tried
        self.failed_notifications = 0
        #: notification -> (time.monotonic() of its last failure, reason); removed when it succeeds
        self._failures: dict[str, tuple[float, str]] = {}

    def notify_learner(self) -> None:
        """There is something to learn."""
        self.attempt(self._jobs.enqueue_learn, what="wake the learner")

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
        """(notification, reason) of a failure within the last FAULT_S; None without one."""
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


class MemoryJobs:
    """A queue in this process that only remembers what it was asked: for tests and for use without Redis."""

    def __init__(self, *, broken: bool = False) -> None:
        """broken: every call raises QueueError, as with Redis down; there is none, and no package to reach one."""
        self.outage = Outage(expected=not broken)
        self.broken = broken
        #: wake-ups of the learner
        self.notified = 0
        self.enqueued: list[DecisionId] = []
        self.published: list[str] = []

    def enqueue_learn(self) -> None:
        """Count it."""
        self._check()
        self.notified += 1

    def learner_fault(self, label: PolicyLabel) -> str | None:
        """None: there is no learner to say anything."""
        del label
        self._check()
        return None

    def enqueue_answers(self, ids: Sequence[DecisionId]) -> None:
        """Remember the decisions."""
        self._check()
        self.enqueued += ids

    def publish(self, notification: str) -> None:
        """Remember the line."""
        self._check()
        self.published.append(notification)

    def listen(self, handle: Callable[[str], None]) -> "Listener | None":
        """None: no notifications arrive, so users poll."""
        del handle
        return None

    def depth(self) -> dict[str, int]:
        """The jobs enqueued so far."""
        self._check()
        return {"answer": len(self.enqueued), "learn": self.notified}

    def workers(self) -> list[WorkerState]:
        """None: the readers of the queue do the jobs."""
        self._check()
        return []

    def work(self) -> dict[str, QueueWork]:
        """Nothing is counted."""
        self._check()
        return {name: QueueWork() for name in ("answer", "judge", "learn")}

    def ping(self) -> None:
        """Nothing to reach."""
        self._check()

    def close(self) -> None:
        """Nothing to close."""

    def _check(self) -> None:
        began = time.monotonic()
        if self.broken:
            error = QueueError("there is no Redis")
            self.outage.failed(error)
            raise error
        self.outage.reached(began=began)
