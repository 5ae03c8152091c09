"""Context: the parts that a process has loaded to run arms, score answers and learn."""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ragbandit.router.config.rules import RuleBook
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.learner import Learner
from ragbandit.router.queue.notifier import Jobs, Notifier
from ragbandit.router.queue.stream_writer import StreamWriter
from ragbandit.router.serving.abilities import Ability, passing_arms
from ragbandit.router.serving.health.gone_models import GoneModels
from ragbandit.router.serving.health.outcome_poller import OutcomePoller
from ragbandit.router.serving.setup.estimates import expected_dollars
from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.answers import AnswerQueue
from ragbandit.router.storage.jobs.claims import Claims
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.deadlines import DeadlineClock
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.router.telemetry.tracing import OFF, Tracing
from ragbandit.shared.types import ArmName, Json
from ragbandit.workers.running.event_loop import CLOSE_S, EventLoop, LoopWatch
from ragbandit.workers.running.runs import ActiveRuns
from ragbandit.workers.running.second_runs import SecondRuns
from ragbandit.workers.setup.loading import ArmLoader, LoadedArm, parts_of

if TYPE_CHECKING:
    from ragbandit.workers.scoring.scorers import QueueScorer

log = logging.getLogger("ragbandit.worker")

#: seconds after the time budget of a run at which the loop counts as blocked
BLOCKED_MORE_S: Final = 10.0
#: number of threads in which the runs of a process wait for the database and Redis
THREADS: Final = 16

Reply = TypeVar("Reply")


@dataclass(kw_only=True)
class Context:
    """The parts that a process has loaded. The HTTP service has one too, if it runs arms itself."""

    settings: Settings
    store: DecisionStore
    ledger: Ledger
    jobs: Jobs
    learner: Learner | None = None
    arms: Mapping[ArmName, LoadedArm] = field(default_factory=dict)
    loader: ArmLoader = field(init=False)
    #: event loop of the arms and of the judge; None if this process has neither, or if its HTTP server has the loop
    loop: EventLoop | None = None
    #: watch of the event loop that runs the arms; None if there is none
    watch: LoopWatch | None = None
    #: scorers of answers in this process
    scorers: list["QueueScorer"] = field(default_factory=list)
    #: sends pieces of unfinished answers to Redis; None except in workers of the queue `answer`
    streams: StreamWriter | None = None
    #: threads in which runs wait for the database and Redis. Functions of arms may block the threads of the loop
    threads: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, THREADS, thread_name_prefix="ragbandit-store")
    )
    tracing: Tracing = OFF
    active_runs: ActiveRuns = field(default_factory=ActiveRuns)
    #: set when this process should end; the process then claims no further job
    ending: threading.Event = field(default_factory=threading.Event)
    #: logs once per outage that the learner cannot learn
    learning_outage: StoreOutage = field(
        default_factory=lambda: StoreOutage(
            action="learn",
            failing="cannot learn, since the store fails; trying again. Stored feedback is learned later. "
            "Give the disk space, or make the database reachable",
            restored="the store works again: learning goes on",
        )
    )
    #: time.monotonic() when the learner last looked for something to learn
    looked_at: float = 0.0
    #: decides when this process runs a question again whose first run ended a process
    second_runs: SecondRuns = field(default_factory=SecondRuns)
    #: lets versions of the policy learn now. The chore `VersionLearning` sets it; by default no version learns here
    wake_versions: Callable[[], None] = lambda: None
    #: clock for deadlines: a host's clock that is ahead must not delete, give up or pay again too early
    deadlines: DeadlineClock = field(init=False)
    notifier: Notifier = field(init=False)
    queue: AnswerQueue = field(init=False)
    #: arms that workers run -> their params
    worker_arms: Mapping[str, Mapping[str, Json]] = field(init=False)
    #: the operator's present rules, which hold for all that this process sends to a model
    rules: RuleBook = field(init=False)
    #: arms that pass chats on -> their abilities
    passing: Mapping[ArmName, Ability] = field(init=False)
    health: OutcomePoller = field(init=False)
    expected: ExpectedDollars = field(init=False)

    def __post_init__(self) -> None:
        self.deadlines = DeadlineClock(self.store.database)
        self.notifier = Notifier(self.jobs)
        self.queue = AnswerQueue(self.store.database)
        self.loader = ArmLoader(self.settings)
        self.rules = self.settings.rule_book
        self.worker_arms, generators = self.settings.worker_arms, self.settings.named_generators
        self.expected = expected_dollars(self.worker_arms, generators=generators)
        self.passing = passing_arms(self.worker_arms, generators=generators)
        gone = GoneModels(self.store.database, arms=self.worker_arms, generators=generators)
        seconds = self.settings.budget.seconds
        self.health = OutcomePoller(self.store.database, settings=self.settings.health, seconds=seconds, gone=gone)

    def claims_with_runs(self) -> list[tuple[Claims, ActiveRuns]]:
        """Returns (queue, active runs from it) for each queue from which this process claims work."""
        return [(self.queue, self.active_runs), *((scorer.queue.claims, scorer.active) for scorer in self.scorers)]

    async def in_thread(self, work: Callable[[], Reply]) -> Reply:
        """Call `work`, which waits for the database or Redis, in a thread. If this process ends meanwhile, the caller
        still gets the result, so that no step of a decision is cut off half done.
        """
        call = contextvars.copy_context().run
        step = asyncio.get_running_loop().run_in_executor(self.threads, call, work)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            if not self.ending.is_set():
                raise
            return step.result()

    def open_loop(self) -> EventLoop:
        """The event loop of this process, on a thread of its own from the first call on."""
        if self.loop is None:
            # An arm may block the loop as long as its run may last: other questions of this process only wait.
            self.loop = EventLoop(blocked_s=self.settings.budget.seconds + BLOCKED_MORE_S)
            self.watch = self.loop.watch
        return self.loop

    def close(self) -> None:
        """Close scorers, generators, retrievers and checks on the event loop, for about CLOSE_S in all, then the loop.
        Failures, and arms whose runs still hold the loop, are logged. Does nothing if this process has no loop.
        """
        loop, self.loop = self.loop, None
        if loop is None:
            return
        if held := self.active_runs.arms():
            extra = {"action": "close", "arms": ",".join(dict.fromkeys(held)), "runs": len(held)}
            extra["at"] = loop.watch.position()
            log.warning("runs have not ended, and the process ends without them", extra=extra)
        give_up = time.monotonic() + CLOSE_S
        for part in [*self.scorers, *parts_of(self.arms.values())]:
            try:
                loop.run(part.close(), timeout_s=max(0.1, give_up - time.monotonic()))
            except Exception as error:  # not raised: the caller must still close the database
                extra = {"action": "close", "part": part.name, "reason": repr(error)}
                log.warning("a part could not be closed; the process ends all the same", extra=extra)
        loop.close()
