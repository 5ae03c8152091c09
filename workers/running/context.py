"""Context: the parts that a process has loaded."""

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.learner import Learner
from ragbandit.router.queue.jobs import RedisJobs
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.queue.stream_writer import StreamWriter
from ragbandit.router.serving.deciding.steps.needs import Ability, passing_arms
from ragbandit.router.serving.health.gone_models import GoneModels
from ragbandit.router.serving.health.outcome_poller import OutcomePoller
from ragbandit.router.serving.health.unsupported_fields import UnsupportedFields
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.answers import AnswerQueue
from ragbandit.router.storage.jobs.claims import Claims
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.deadlines import DeadlineClock
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.router.telemetry.tracing import OFF, Tracing
from ragbandit.shared.types import ArmName, Json
from ragbandit.workers.running.event_loop import CLOSE_S, EventLoop
from ragbandit.workers.running.runs import ActiveRuns
from ragbandit.workers.running.scorers import Checking, Judging
from ragbandit.workers.setup.loading import ArmLoader, LoadedArm, parts_of

log = logging.getLogger("ragbandit.worker")


@dataclass(kw_only=True)
class Context:
    """The parts that a process has loaded. The HTTP service has one too, if it runs arms itself."""

    settings: Settings
    store: DecisionStore
    ledger: Ledger
    jobs: RedisJobs
    learner: Learner | None = None
    arms: Mapping[ArmName, LoadedArm] = field(default_factory=dict)
    loader: ArmLoader = field(init=False)
    #: event loop of the arms and of the judge; None if this process has neither
    loop: EventLoop | None = None
    judging: Judging | None = None
    checking: Checking | None = None
    #: sends pieces of unfinished answers to Redis; None except in workers of the queue `answer`
    streams: StreamWriter | None = None
    tracing: Tracing = OFF
    active_runs: ActiveRuns = field(default_factory=ActiveRuns)
    #: set when this process should end; no job begins after that
    ending: threading.Event = field(default_factory=threading.Event)
    learning: StoreOutage = field(
        default_factory=lambda: StoreOutage(
            action="learn",
            failing="cannot learn, since the store fails; trying again. Stored feedback is learned later. "
            "Give the disk space, or make the database reachable",
            restored="the store works again: learning goes on",
        )
    )
    #: time.monotonic() when the learner last looked for something to learn
    looked_at: float = 0.0
    #: time.monotonic() of the last look for questions whose run ended a process, and whether one waits for too long
    looked_again_at: float = -math.inf
    is_overdue: bool = False
    wake_versions: Callable[[], None] = lambda: None
    #: the time for what deletes, gives up or pays again
    deadlines: DeadlineClock = field(init=False)
    notifier: Notifier = field(init=False)
    queue: AnswerQueue = field(init=False)
    #: arms that workers run -> their params; arms that pass chats on -> their abilities
    worker_arms: Mapping[str, Mapping[str, Json]] = field(init=False)
    passing: Mapping[ArmName, Ability] = field(init=False)
    health: OutcomePoller = field(init=False)
    unsupported: UnsupportedFields = field(init=False)

    def __post_init__(self) -> None:
        self.deadlines = DeadlineClock(self.store.database)
        self.notifier = Notifier(self.jobs)
        self.queue = AnswerQueue(self.store.database)
        self.loader = ArmLoader(self.settings)
        self.worker_arms, generators = self.settings.worker_arms, self.settings.named_generators
        self.passing = passing_arms(self.worker_arms, generators=generators)
        gone = GoneModels(self.store.database, arms=self.worker_arms, generators=generators)
        self.unsupported = UnsupportedFields(self.store.database, generators=generators)
        seconds = self.settings.budget.seconds
        self.health = OutcomePoller(self.store.database, settings=self.settings.health, seconds=seconds, gone=gone)

    def claimed(self) -> list[tuple[Claims, ActiveRuns]]:
        """Returns (queue, active runs from it) for each queue from which this process claims work."""
        scorers = [scorer for scorer in (self.judging, self.checking) if scorer is not None]
        return [(self.queue, self.active_runs), *((scorer.queue.claims, scorer.active) for scorer in scorers)]

    def close(self) -> None:
        """Close the judge, generators and retrievers on the event loop, then the loop. Failures are logged."""
        loop, self.loop = self.loop, None
        if loop is None:
            return
        judges = [] if self.judging is None else [self.judging.judge]
        for part in judges + parts_of(self.arms.values()):
            try:
                loop.run(part.close(), timeout_s=CLOSE_S)
            except Exception as error:  # the caller must still close the database
                extra = {"action": "close", "part": part.name, "reason": repr(error)}
                log.warning("a part could not be closed; the process ends all the same", extra=extra)
        loop.close()
