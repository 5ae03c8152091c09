"""`Notifier` wakes learners and workers, and never raises. `MemoryJobs` replaces RedisJobs if there is no Redis."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from ragbandit.router.queue.outage import Outage
from ragbandit.router.queue.presence import QueueWork, WorkerState
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId

if TYPE_CHECKING:  # the module jobs imports redis, which may not be installed
    from ragbandit.router.queue.jobs import RedisJobs
    from ragbandit.router.queue.listener import Listener

Reply = TypeVar("Reply")

Jobs: TypeAlias = "RedisJobs | MemoryJobs"
#: time for which /ready reports a failed notification, seconds
FAULT_S: Final = 60.0


class Notifier:
    """Calls Redis, and never raises. After a failure it skips calls for outage.PAUSE_S seconds."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        #: number of notifications that failed or were skipped
        self.failed_notifications = 0
        #: name of an action -> (time.monotonic() of its last failure, reason), until the action succeeds
        self._failures: dict[str, tuple[float, str]] = {}

    def notify_learner(self) -> None:
        self.attempt(self._jobs.enqueue_learn, action="wake the learner")

    def request_answers(self, ids: Sequence[DecisionId]) -> None:
        self.attempt(lambda: self._jobs.enqueue_answers(ids), action="queue answers")

    def cancel(self, decision_id: DecisionId) -> None:
        """Ask the process that runs this decision to stop, and wake a worker in case no process runs it."""

        def send() -> None:
            self._jobs.publish(f"cancel:{decision_id}")
            self._jobs.enqueue_answers([decision_id])

        self.attempt(send, action="cancel answers")

    def fault(self) -> str | None:
        """The failures of the last FAULT_S seconds in words; None if nothing failed."""
        failures = list(self._failures.items())
        recent = [f"cannot {action}: {why}" for action, (at, why) in failures if time.monotonic() < at + FAULT_S]
        return "; ".join(recent) or None

    def attempt(self, send: Callable[[], Reply], *, action: str = "notify") -> Reply | None:
        """Call `send` and return its reply; None if Redis cannot be reached. action: its name, for `fault`."""
        if not self._jobs.outage.paused:
            try:
                reply = send()
            except QueueError as error:  # logged by the outage, once
                self._failures[action] = (time.monotonic(), error.message)
            else:
                self._failures.pop(action, None)
                return reply
        self.failed_notifications += 1
        return None


class MemoryJobs:
    """A queue that only records its calls: for tests and for use without Redis."""

    def __init__(self, *, broken: bool = False) -> None:
        """broken: whether every call raises QueueError, as if Redis could not be reached"""
        self.outage = Outage(expected=not broken)
        self.broken = broken
        self.notified = 0
        self.enqueued: list[DecisionId] = []
        self.published: list[str] = []

    def enqueue_learn(self) -> None:
        self._raise_if_broken()
        self.notified += 1

    def enqueue_answers(self, ids: Sequence[DecisionId]) -> None:
        self._raise_if_broken()
        self.enqueued += ids

    def publish(self, notification: str) -> None:
        self._raise_if_broken()
        self.published.append(notification)

    def listen(self, _handle: Callable[[str], None]) -> "Listener | None":
        """Returns None: no notifications arrive, so callers have to poll the database."""
        return None

    def depth(self) -> dict[str, int]:
        self._raise_if_broken()
        return {"answer": len(self.enqueued), "learn": self.notified}

    def workers(self) -> list[WorkerState]:
        self._raise_if_broken()
        return []

    def work(self) -> dict[str, QueueWork]:
        self._raise_if_broken()
        return {name: QueueWork() for name in ("answer", "judge", "learn")}

    def ping(self) -> None:
        self._raise_if_broken()

    def close(self) -> None:
        pass

    def _raise_if_broken(self) -> None:
        began = time.monotonic()
        if self.broken:
            error = QueueError("there is no Redis")
            self.outage.note_failure(error)
            raise error
        self.outage.note_reply(sent_at=began)
