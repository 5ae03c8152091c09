"""Context: what a worker process has loaded, what it runs now, and whether its store works."""

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
from ragbandit.router.queue.streams import StreamWriter
from ragbandit.router.serving.health.circuit_breaker import OutcomePoller
from ragbandit.router.storage.answer_queue import AnswerQueue
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.judgements import ScoreQueue
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.outcome_rows import CHECK_ATTEMPTS, CHECK_EXPIRE_S
from ragbandit.router.storage.sql.leases import Claims
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.router.telemetry.tracing import OFF, Tracing
from ragbandit.shared.outbound import back_off
from ragbandit.shared.types import ArmName, DecisionId, FeedbackSource, Json
from ragbandit.workers.check_process import CheckProcess
from ragbandit.workers.judge.judge import Judge
from ragbandit.workers.threads import CLOSE_S, EventLoop
from ragbandit.workers.wiring.loading import ArmLoader, LoadedArm, parts_of

log = logging.getLogger("ragbandit.worker")

#: a judgement may take that much longer than its call
MARGIN_S: Final = 5.0
#: longest name of a rater that a feedback has
LONGEST_RATER: Final = 64
#: first and longest pause of a process whose judge's model fails
FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 60.0


@dataclass(kw_only=True, slots=True)
class ActiveRun:
    """A decision that this process has claimed."""

    decision_id: DecisionId
    #: runs of the decision that began before
    tries: int
    #: known once its row was read
    arm: ArmName | None = None
    #: its request as it came, for an arm that passes it on
    chat: Mapping[str, Json] = field(default_factory=dict)
    #: done when the run should stop
    stop: "Future[None]" = field(default_factory=Future)


class ActiveRuns:
    """The runs of this process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[DecisionId, ActiveRun] = {}

    def begin(self, run: ActiveRun) -> ActiveRun:
        """This process has claimed a decision."""
        with self._lock:
            self._runs[run.decision_id] = run
        return run

    @contextmanager
    def ending(self, run: ActiveRun) -> Iterator[None]:
        """The block runs it; with it the run ends."""
        try:
            yield
        finally:
            with self._lock:
                del self._runs[run.decision_id]

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop this run; False if it is not here, has ended, or was stopped before."""
        with self._lock:
            run = self._runs.get(decision_id)
            if run is None or run.stop.done():
                return False
            run.stop.set_result(None)
            return True

    def ids(self) -> list[DecisionId]:
        """The decisions in hand."""
        with self._lock:
            return list(self._runs)

    def most_tries(self) -> int:
        """Largest number of earlier runs among them; 0 if nothing runs."""
        with self._lock:
            return max((run.tries for run in self._runs.values()), default=0)

    def arms(self) -> list[ArmName]:
        """The arm of every run, by name, as far as it is known."""
        with self._lock:
            return sorted(run.arm for run in self._runs.values() if run.arm is not None)


class Scorer:
    """A scorer of answers in a worker process: the judge or a check. rule: text that, with it, defines the meaning of a
    score. facts: facts stored with every score.
    """

    def __init__(
        self, queue: ScoreQueue, *, source: FeedbackSource, rater: str, rule: str, facts: Mapping[str, Json]
    ) -> None:
        self.queue, self.source, self.rater, self.rule, self.facts = queue, source, rater[:LONGEST_RATER], rule, facts
        self.active = ActiveRuns()

    @property
    def paused(self) -> bool:
        """Whether nothing is to be begun now."""
        return False


class Checking(Scorer):
    """The check of `reward.check`, in a process of its own."""

    def __init__(self, settings: RewardSettings, *, store: DecisionStore) -> None:
        check = str(settings.check)
        queue = ScoreQueue(store, kind="check", attempts=CHECK_ATTEMPTS, expire_s=CHECK_EXPIRE_S)
        super().__init__(queue, source="code", rater=check[-LONGEST_RATER:], rule=check, facts={"check": check})
        self.process = CheckProcess(settings)


class Judging(Scorer):
    """The judge: the model, and a pause while it fails."""

    def __init__(self, judge: Judge, *, queue: ScoreQueue) -> None:
        facts: dict[str, Json] = {"model": judge.rater, "rubric": judge.rubric}
        super().__init__(queue, source="judge", rater=judge.rater, rule=judge.rubric, facts=facts)
        self.judge = judge
        #: what one judgement may take, seconds
        self.longest_s = judge.settings.seconds + MARGIN_S
        self._lock = threading.Lock()
        self._failures = 0
        #: by time.monotonic()
        self._paused_until = 0.0
        self._outage = StoreOutage(
            action="judge",
            failing="the judge's model or its passages fail; answers wait and are judged later. See judge.generator",
            restored="the judge's model works again",
        )

    @property
    def paused(self) -> bool:
        """Whether the model failed a moment ago."""
        return time.monotonic() < self._paused_until

    def failed(self, error: Exception) -> None:
        """The model failed: the next call of this process waits, longer each time."""
        with self._lock:
            self._failures += 1
            first = min(FIRST_PAUSE_S, self.judge.settings.retry_s)
            pause = back_off(self._failures, base_s=first, longest_s=LONGEST_PAUSE_S)
            self._paused_until = time.monotonic() + pause
        self._outage.failed(error)

    def worked(self) -> None:
        """The model replied, whatever it said."""
        with self._lock:
            self._failures, self._paused_until = 0, 0.0
        self._outage.ended()


@dataclass(kw_only=True)
class Context:
    """The parts that a worker process has loaded."""

    settings: Settings
    store: DecisionStore
    ledger: Ledger
    jobs: RedisJobs
    learner: Learner | None = None
    arms: Mapping[ArmName, LoadedArm] = field(default_factory=dict)
    #: makes further arms, and the judge's generator
    loader: ArmLoader = field(init=False)
    #: where arms run; made when the answer queue is served
    loop: EventLoop | None = None
    #: made when the judge's queue is served
    judging: Judging | None = None
    #: made where a worker learns and there is a check
    checking: Checking | None = None
    #: where runs give their answers out; None: nowhere
    streams: StreamWriter | None = None
    tracing: Tracing = OFF
    active_runs: ActiveRuns = field(default_factory=ActiveRuns)
    #: set when this process is to end: nothing new is begun
    ending: threading.Event = field(default_factory=threading.Event)
    #: whether the learner can read and write its store
    learning: StoreOutage = field(
        default_factory=lambda: StoreOutage(
            action="learn",
            failing="cannot learn, since the store fails; trying again. Stored feedback is learned later. "
            "Give the disk space, or make the database reachable",
            restored="the store works again: learning goes on",
        )
    )
    #: when the learner last looked for something to learn (time.monotonic)
    looked_at: float = 0.0
    #: notifies the learners of versions that there may be something to learn
    wake_versions: Callable[[], None] = lambda: None
    notifier: Notifier = field(init=False)
    queue: AnswerQueue = field(init=False)
    #: state of the arms' circuits, read when an arm has failed
    health: OutcomePoller = field(init=False)

    def __post_init__(self) -> None:
        self.notifier = Notifier(self.jobs)
        self.queue = AnswerQueue(self.store.database)
        self.loader = ArmLoader(self.settings)
        budget_s = self.settings.budget.seconds
        self.health = OutcomePoller(self.store.database, settings=self.settings.health, seconds=budget_s)

    def claimed(self) -> list[tuple[Claims, ActiveRuns]]:
        """Queues this process claims from, and the jobs it is running."""
        scorers: list[Scorer] = [one for one in (self.judging, self.checking) if one is not None]
        return [(self.queue, self.active_runs), *((one.queue.claims, one.active) for one in scorers)]

    def close(self) -> None:
        """Close generators and retrievers on the loop they lived on, then the loop; a failure is logged."""
        loop, self.loop = self.loop, None
        if loop is None:
            return
        judge = None if self.judging is None else self.judging.judge
        for part in ([] if judge is None else [judge]) + parts_of(self.arms.values()):
            try:
                loop.run(part.close(), timeout_s=CLOSE_S)
            except Exception as error:  # the process ends anyway; the database must still be closed
                facts = {"action": "close", "part": part.name, "reason": repr(error)}
                log.warning("a part could not be closed; the process ends all the same", extra=facts)
        loop.close()
