"""Jobs in memory: a queue that only remembers what it was asked."""

import time
from collections.abc import Callable, Sequence

from ragbandit.router.queue.outage import Outage
from ragbandit.router.queue.presence import QueueWork, WorkerState
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import DecisionId, PolicyLabel


class MemoryJobs:
    """A queue in this process that only remembers what it was asked: for tests and for use without Redis."""

    def __init__(self) -> None:
        self.outage = Outage()
        self.notified: list[PolicyLabel] = []
        self.enqueued: list[DecisionId] = []
        self.published: list[str] = []
        #: True: every call raises QueueError, as with Redis down
        self.broken = False

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Remember the label."""
        self._check()
        self.notified.append(label)

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

    def listen(self, handle: Callable[[str], None]) -> "Silence":
        """Nothing ever arrives: whoever uses it polls."""
        del handle
        return Silence()

    def depth(self) -> dict[str, int]:
        """The jobs enqueued so far."""
        self._check()
        return {"answer": len(self.enqueued), "learn": len(self.notified)}

    def refused(self) -> int:
        """0: nobody else reaches this queue."""
        self._check()
        return 0

    def workers(self) -> list[WorkerState]:
        """None: jobs are done by whoever reads what is enqueued."""
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
            error = QueueError(f"there is no Redis ({type(self).__name__})")
            self.outage.failed(error)
            raise error
        self.outage.reached(began=began)


class NoJobs(MemoryJobs):
    """No Redis, and no package to reach one: everybody polls the database, and nothing is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.outage = Outage(expected=False)
        self.broken = True


class Silence:
    """The subscription of MemoryJobs."""

    def fault(self) -> str | None:
        """None: nothing is to arrive."""
        return None

    def close(self) -> None:
        """Nothing to close."""
