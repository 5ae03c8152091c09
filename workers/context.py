"""Context: the parts that a worker process has loaded, and what its jobs share."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ragbandit.router.config.settings import Settings
from ragbandit.router.jobs.notifier import Notifier
from ragbandit.router.jobs.queue import RedisJobs
from ragbandit.router.jobs.streams.writer import StreamWriter
from ragbandit.router.learning.learner import Learner
from ragbandit.router.storage.answer_queue import AnswerQueue
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.telemetry.tracing import OFF, Tracing
from ragbandit.shared.types import ArmName
from ragbandit.strategies.base import Generator, Retriever
from ragbandit.strategies.run import Strategy
from ragbandit.workers.active_runs import ActiveRuns
from ragbandit.workers.event_loop import CLOSE_S, EventLoop
from ragbandit.workers.judge.job import Judging
from ragbandit.workers.store_outage import StoreOutage

__all__ = ["Context"]

log = logging.getLogger("ragbandit.worker")


@dataclass(kw_only=True)
class Context:
    """The parts that a worker process has loaded."""

    settings: Settings
    store: DecisionStore
    ledger: Ledger
    jobs: RedisJobs
    learner: Learner | None = None
    arms: Mapping[ArmName, Strategy] = field(default_factory=dict)
    retriever: Retriever | None = None
    generator: Generator | None = None
    #: where arms run; made when the answer queue is served
    loop: EventLoop | None = None
    #: made when the judge's queue is served
    judging: Judging | None = None
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
    #: tells the learners of versions that there may be something to learn
    wake_versions: Callable[[], None] = lambda: None
    notifier: Notifier = field(init=False)
    queue: AnswerQueue = field(init=False)

    def __post_init__(self) -> None:
        self.notifier = Notifier(self.jobs, label=self.store.label)
        self.queue = AnswerQueue(self.store.database)

    def close(self) -> None:
        """Close generator and retriever on the loop they lived on, then the loop; a failure is logged."""
        loop, self.loop = self.loop, None
        if loop is None:
            return
        judge = None if self.judging is None else self.judging.judge
        for part in (judge, self.generator, self.retriever):
            if part is None:
                continue
            try:
                loop.run(part.close(), timeout_s=CLOSE_S)
            except Exception as error:  # the process ends anyway; the database must still be closed
                facts = {"action": "close", "part": part.name, "reason": repr(error)}
                log.warning("a part could not be closed; the process ends all the same", extra=facts)
        loop.close()
