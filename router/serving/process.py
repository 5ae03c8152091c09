"""Router process: the threads, queues and connections that one Router runs from `start` to `close`."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.learning.status import Status
from ragbandit.router.queue.notifier import Jobs, MemoryJobs, Notifier
from ragbandit.router.serving.batching import MicroBatcher, QueueState, make_write_queue
from ragbandit.router.serving.deciding.service import RouteService
from ragbandit.router.serving.deciding.steps.breaker import Breaker
from ragbandit.router.serving.health.readiness import OK, REDIS, Readiness, RouterState, TrialWrites, lag_percentiles
from ragbandit.router.serving.loading.snapshots import SnapshotLoader
from ragbandit.router.serving.loading.versions import VersionLoader
from ragbandit.router.serving.overview import Savings, read_earned
from ragbandit.router.serving.pending import PendingAnswers
from ragbandit.router.serving.setup.bootstrap import make_decision_store
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.telemetry.routines import Routine, StoreOutage
from ragbandit.shared.errors import NotReady, QueueError
from ragbandit.shared.types import Feedback, Outcome, Receipt

if TYPE_CHECKING:
    from ragbandit.router.queue.listener import Listener
    from ragbandit.router.queue.stream_reader import StreamReader

Queue = Literal["questions", "feedback", "outcomes"]
Reply = TypeVar("Reply")

#: seconds between two polls for snapshots, awaited outcomes and the arms' health; notifications start a poll at once
POLL_S = 1.0
#: seconds from new feedback or outcomes to the notification of the learner, which thus covers many of them
WAKE_S: Final = 0.02
#: seconds between two notifications of the learner without new items
IDLE_S: Final = 3600.0


class RouterProcess:
    """The running parts of a Router. Nothing is read, written or started before `start`."""

    def __init__(self, settings: Settings, *, encoder: Encoder, database: Database, jobs: Jobs) -> None:
        self._policy = settings.policy
        self.database, self.jobs = database, jobs
        self.store = make_decision_store(settings, database)
        outage = StoreOutage(
            action="poll",
            failing="polling the database failed; trying again",
            restored="polling the database works again",
            log="ragbandit.snapshots",
        )
        #: reads snapshots, outcomes and health from the store, every POLL_S and when it is woken
        self.poll = Routine("follow", self._catch_up, every_s=POLL_S, at_once=False, outage=outage)
        self._poll_health_at = 0.0
        #: receives notifications; None before `start`, and without Redis
        self.listener: Listener | None = None
        self.notifier = Notifier(jobs)
        files = SnapshotFiles(settings.snapshot_root, hands_over=True)
        snapshots = SnapshotLoader(database, settings=settings, files=files, encoder=encoder)
        self.service = RouteService(self.store, encoder=encoder, served=snapshots.served)
        self.versions = VersionLoader(snapshots, serve=self.service.take_over, wake=self.poll.wake)
        self.service.versions = self.versions
        self.answers = PendingAnswers(self.store, notifier=self.notifier, server=settings.server)
        #: notifies the learner WAKE_S after it was woken
        self.learner_wakeup = Routine(
            "wake the learner", self._wake_learner, every_s=IDLE_S, at_once=False, at_end=self.notifier.notify_learner
        )
        make_queue = partial(make_write_queue, wake=self.learner_wakeup.wake, limits=settings.server)
        self.feedback: MicroBatcher[Feedback, Receipt] = make_queue(self.store.add_feedback, name="ragbandit-feedback")
        self.outcomes: MicroBatcher[Outcome, bool] = make_queue(self.store.add_outcomes, name="ragbandit-outcomes")
        #: estimates the dollars that an answer saved, compared with the arm of the holdback
        self.savings = Savings(database, policy=settings.policy)
        #: reads answers while workers write them; None without Redis
        self.streams: StreamReader | None = None
        self.readiness = Readiness(
            {"database": TrialWrites(database).write, REDIS: self._check_redis},
            alive=self.service.alive,
            serving=lambda: self.service.serving,
        )

    @property
    def ledger(self) -> Ledger:
        """The ledger of the policy that decides."""
        return self.versions.ledger

    def start(self) -> None:
        """Register the policy, load its newest snapshot, start the threads; once. Raises as `VersionLoader.start`."""
        self.versions.start()
        self.service.refresh_steps()
        if self.service.serving.last_seq < self.ledger.last_seq():
            # The newest snapshot is lost or has other params, so the learner must make another one from the ledger.
            self.notifier.notify_learner()
        for part in (self.service, self.feedback, self.outcomes, self.answers):
            part.start()
        if not isinstance(self.jobs, MemoryJobs):
            from ragbandit.router.queue.stream_reader import StreamReader

            self.streams = StreamReader(self.jobs.client, outage=self.jobs.outage)
        self.learner_wakeup.start()
        self.poll.start()
        self.listener = self.jobs.listen(self._handle_notification)

    def close(self) -> None:
        """Finish the submitted requests, and stop all threads."""
        queues = (self.service, self.feedback, self.outcomes, self.answers)
        for part in (*queues, self.learner_wakeup, self.poll, self.listener, self.versions, self.streams):
            if part is not None:
                part.close()

    def note_failure(self) -> None:
        """Let the circuit breaker read the newest outcomes at once, because an arm failed."""
        self._poll_health_at = 0.0
        self.poll.wake()

    def state(self, ledger: Status) -> RouterState:
        """State of this process, with the state of its ledger. Raises StoreError."""
        service, serving, breaker = self.service, self.service.serving, self.service.step(Breaker)
        wake_ups = _from_redis(self.jobs.depth)
        return RouterState(
            ledger=ledger,
            label=self.ledger.label,
            algorithm=self._policy.name,
            serving=serving.version,
            serving_last_seq=serving.last_seq,
            rebuilding=serving.rebuilding,
            arms=tuple(breaker.healths(service.arms, now=service.clock())),
            faults=service.faults,
            fail_opens=breaker.fail_opens,
            failed_notifications=self.notifier.failed_notifications,
            feedback_to_policy_ms=lag_percentiles(tuple(self.versions.snapshots.lags)),
            earned=read_earned(self.database, policy=self.ledger.label, now=time.time()),
            jobs=None if wake_ups is None else {"answer": 0, "judge": ledger.judge.waiting, **wake_ups},
            workers=_from_redis(self.jobs.workers),
            work=_from_redis(self.jobs.work),
            redis="Redis cannot be reached" if self.jobs.outage.lasts else self._redis_fault() or OK,
        )

    def check_admission(self, queue: Queue) -> None:
        """Raises Overloaded, and counts the refusal, if the queue accepts no further request from any tenant."""
        if queue == "questions":
            self.service.check_admission()
        else:
            (self.feedback if queue == "feedback" else self.outcomes).check_admission()

    def queues(self) -> Mapping[str, QueueState]:
        """Name of a queue -> its state, with counts of refused and dropped items since the start."""
        return {
            "feedback": self.feedback.state(),
            "outcomes": self.outcomes.state(),
            "questions": self.service.state(),
            "answers": self.answers.state(),
        }

    def _redis_fault(self) -> str | None:
        """Why this process cannot use Redis; None if it can use Redis."""
        listener = None if self.listener is None else self.listener.fault()
        return "; ".join(fault for fault in (listener, self.notifier.fault()) if fault) or None

    def _check_redis(self) -> None:
        self.jobs.ping()
        fault = self._redis_fault()
        if fault is not None:
            raise NotReady(fault)

    def _handle_notification(self, notification: str) -> None:
        """Handle a notification of a worker or the learner: "snapshot" or "outcome:<decision id>"."""
        kind, _, key = notification.partition(":")
        if kind == "snapshot":
            self.poll.wake()
        elif kind == "outcome":
            if self.answers.is_awaited(key):
                outcomes = self.store.outcomes_by_id([key])
                self.answers.deliver(outcomes)
                if any(isinstance(row, Outcome) and row.status == "failed" for row in outcomes.values()):
                    self.note_failure()
            else:
                self.answers.release([key])

    def _wake_learner(self) -> None:
        time.sleep(WAKE_S)
        self.notifier.notify_learner()

    def _catch_up(self) -> None:
        if time.monotonic() >= self._poll_health_at:
            self._poll_health_at = time.monotonic() + POLL_S
            self.service.refresh_steps()
        self.versions.refresh()
        self.answers.poll()
        self.savings.refresh()


def _from_redis(ask: Callable[[], Reply]) -> Reply | None:
    try:
        return ask()
    except QueueError:
        return None
