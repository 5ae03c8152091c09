"""Updates: what workers and the learner did arrives by notification and, where one was missed, by polling."""

import time

from ragbandit.router.queue.notifier import Jobs, Notifier, Subscription
from ragbandit.router.serving.answers.pending import PendingAnswers
from ragbandit.router.serving.deciding.service import RouteService
from ragbandit.router.serving.following.policy import PolicyFollower
from ragbandit.router.serving.following.polling import PollingThread
from ragbandit.router.serving.savings import Savings
from ragbandit.shared.errors import NotReady

#: seconds between two polls for new snapshots, awaited outcomes and the arms' health; a notification comes sooner
POLL_S = 1.0


class Updates:
    """Tells the parts of a router what is new: snapshots, versions, outcomes, the arms' health."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        notifier: Notifier,
        service: RouteService,
        following: PolicyFollower,
        answers: PendingAnswers,
        savings: Savings,
    ) -> None:
        self._jobs, self._notifier = jobs, notifier
        self._service, self._following, self._answers = service, following, answers
        self._savings = savings
        self._poll = PollingThread(self._catch_up, name="ragbandit-follow", every_s=POLL_S)
        self._poll_health_at = 0.0
        #: None before `start`
        self.listener: Subscription | None = None

    def start(self) -> None:
        """Start the threads that poll and listen."""
        self._poll.start()
        self.listener = self._jobs.listen(self.handle)

    def close(self) -> None:
        """End the threads."""
        self._poll.close()
        if self.listener is not None:
            self.listener.close()

    def wake(self) -> None:
        """Poll now instead of at the next interval."""
        self._poll.wake()

    def handle(self, notification: str) -> None:
        """Take what a worker or the learner says: "snapshot:<version>", "outcome:<decision id>"."""
        kind, _, key = notification.partition(":")
        if kind == "snapshot":
            self.wake()
        elif kind == "outcome":
            if self._answers.is_awaited(key):
                self._answers.deliver(self._service.store.outcomes_by_id([key]))
            else:
                self._answers.answered([key])

    def hears(self) -> bool:
        """Whether notifications arrive in this process; True before `start`."""
        return self.listener is None or self.listener.fault() is None

    def redis_fault(self) -> str | None:
        """What this process cannot do with Redis, or met there that is not ours; None: nothing."""
        listener = None if self.listener is None else self.listener.fault()
        faults = (listener, self._notifier.fault(), self._jobs.outage.foreign.recent())
        return "; ".join(fault for fault in faults if fault) or None

    def check_redis(self) -> None:
        """Raises QueueError where Redis cannot be reached, NotReady with the fault of `redis_fault`."""
        self._jobs.ping()
        fault = self.redis_fault()
        if fault is not None:
            raise NotReady(fault)

    def _catch_up(self) -> None:
        if time.monotonic() >= self._poll_health_at:
            self._poll_health_at = time.monotonic() + POLL_S
            self._service.poll_outcomes(more=self._following.versions.live.added)
        self._following.refresh()
        self._answers.poll()
        self._savings.refresh()
