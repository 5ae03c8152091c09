"""Context: the parts that a worker process has loaded, its active runs, and its scorers."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ragbandit.router.config.settings import RewardSettings, Settings
from ragbandit.router.learning.learner import Learner
from ragbandit.router.queue.jobs import RedisJobs
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.queue.stream_writer import StreamWriter
from ragbandit.router.serving.health.outcome_poller import OutcomePoller
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.answers import AnswerQueue, ClaimedDecision
from ragbandit.router.storage.jobs.claims import Claims
from ragbandit.router.storage.jobs.scores import CHECK_ATTEMPTS, CHECK_EXPIRE_S
from ragbandit.router.storage.judgements import ScoreQueue
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.router.telemetry.tracing import OFF, Tracing
from ragbandit.shared.outbound import back_off
from ragbandit.shared.types import ArmName, DecisionId, FeedbackSource, Json
from ragbandit.workers.judge.judge import Judge
from ragbandit.workers.reward_check import CheckProcess
from ragbandit.workers.setup.loading import ArmLoader, LoadedArm, parts_of
from ragbandit.workers.threads import CLOSE_S, EventLoop

log = logging.getLogger("ragbandit.worker")

LONGEST_RATER: Final = 64


@dataclass(kw_only=True, slots=True)
class ActiveRun:
    decision_id: DecisionId
    #: number of earlier runs of the decision
    tries: int
    #: arm that runs; None if the decision is not read yet, or only its answer is scored
    arm: ArmName | None = None
    #: the chat request as received, for arms that forward it
    chat: Mapping[str, Json] = field(default_factory=dict)
    #: completed when the run should stop
    stop: "Future[None]" = field(default_factory=Future)


class ActiveRuns:
    """Claimed decisions that this process is running or scoring. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[DecisionId, ActiveRun] = {}

    def begin(self, run: ActiveRun) -> ActiveRun:
        with self._lock:
            self._runs[run.decision_id] = run
        return run

    def begin_claimed(self, job: ClaimedDecision) -> ActiveRun:
        return self.begin(ActiveRun(decision_id=job.decision_id, tries=job.tries, arm=job.arm, chat=job.chat))

    @contextmanager
    def ending(self, run: ActiveRun) -> Iterator[None]:
        """Remove the run at the end of the block."""
        try:
            yield
        finally:
            with self._lock:
                del self._runs[run.decision_id]

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop the run of this decision. Returns False if none runs here, or if the run was stopped before."""
        with self._lock:
            run = self._runs.get(decision_id)
            if run is None or run.stop.done():
                return False
            run.stop.set_result(None)
            return True

    def ids(self) -> list[DecisionId]:
        with self._lock:
            return list(self._runs)

    def most_tries(self) -> int:
        with self._lock:
            return max((run.tries for run in self._runs.values()), default=0)

    def arms(self) -> list[ArmName]:
        """The arms of all runs whose arm is known, sorted; an arm with several runs is repeated."""
        with self._lock:
            return sorted(run.arm for run in self._runs.values() if run.arm is not None)


class Scorer:
    def __init__(
        self, queue: ScoreQueue, *, source: FeedbackSource, rater: str, rule: str, facts: Mapping[str, Json]
    ) -> None:
        """rule: hash of the judge's rubric, or path of the check. facts: stored with every score."""
        self.queue = queue
        self.source = source
        self.rater = rater[:LONGEST_RATER]
        self.rule = rule
        self.facts = facts
        self.active = ActiveRuns()

    @property
    def paused(self) -> bool:
        return False


class Checking(Scorer):
    def __init__(self, settings: RewardSettings, *, store: DecisionStore) -> None:
        check = str(settings.check)
        queue = ScoreQueue(store, kind="check", attempts=CHECK_ATTEMPTS, expire_s=CHECK_EXPIRE_S)
        super().__init__(queue, source="code", rater=check[-LONGEST_RATER:], rule=check, facts={"check": check})
        self.process = CheckProcess(settings)


class Judging(Scorer):
    def __init__(self, judge: Judge, *, queue: ScoreQueue) -> None:
        stored: dict[str, Json] = {"model": judge.rater, "rubric": judge.rubric}
        super().__init__(queue, source="judge", rater=judge.rater, rule=judge.rubric, facts=stored)
        self.judge = judge
        #: time limit of one judgement, seconds; `judge.seconds` limits only the call of the judge's model
        self.longest_s = judge.settings.seconds + 5.0
        self._lock = threading.Lock()
        self._failures = 0
        #: time.monotonic() at which judging resumes after a failure; 0.0 without a failure
        self._paused_until = 0.0
        self._outage = StoreOutage(
            action="judge",
            failing="the judge's model or its passages fail; answers wait and are judged later. See judge.generator",
            restored="the judge's model works again",
        )

    @property
    def paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def failed(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            pause = back_off(self._failures, base_s=min(5.0, self.judge.settings.retry_s), longest_s=60.0)
            self._paused_until = time.monotonic() + pause
        self._outage.failed(error)

    def worked(self) -> None:
        with self._lock:
            self._failures, self._paused_until = 0, 0.0
        self._outage.ended()


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
    wake_versions: Callable[[], None] = lambda: None
    notifier: Notifier = field(init=False)
    queue: AnswerQueue = field(init=False)
    health: OutcomePoller = field(init=False)

    def __post_init__(self) -> None:
        self.notifier = Notifier(self.jobs)
        self.queue = AnswerQueue(self.store.database)
        self.loader = ArmLoader(self.settings)
        budget_s = self.settings.budget.seconds
        self.health = OutcomePoller(self.store.database, settings=self.settings.health, seconds=budget_s)

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
