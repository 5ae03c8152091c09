"""The jobs, reached by name: "workers.tasks.answer", "workers.tasks.learn". At-least-once in, exactly-once out.

RQ calls these with ids only. What they need (models, database) is loaded once per process and bound here.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from router.config import Settings
from router.edge import capped
from router.errors import NotReady, QueueError
from router.jobs import RUNNING_S, RedisJobs
from router.learner import Learner
from router.ledger import Ledger
from router.store import Store
from router.sweep import sweep
from router.types import ArmName, Cost, Decision, DecisionId, Outcome, PolicyLabel
from strategies.base import Generator, Retriever, Strategy
from strategies.runner import run_strategy

__all__ = ["Context", "answer", "bind", "housekeeping", "learn"]

log = logging.getLogger("ragbandit.worker")


@dataclass(kw_only=True)
class Context:
    """What a worker process has loaded."""

    settings: Settings
    store: Store
    ledger: Ledger
    jobs: RedisJobs
    learner: Learner | None = None
    arms: Mapping[ArmName, Strategy] = field(default_factory=dict)
    retriever: Retriever | None = None
    generator: Generator | None = None
    #: decisions this process is running now
    running: set[DecisionId] = field(default_factory=set)


_bound: list[Context] = []


def bind(context: Context) -> None:
    """Make this the process's context; RQ gives a job nothing but its arguments."""
    _bound[:] = [context]


def _context() -> Context:
    if not _bound:
        raise NotReady("this process has loaded nothing", remedy="start workers with: ragbandit worker")
    return _bound[0]


def answer(decision_id: str) -> None:
    """Run the drawn arm of a decision and keep its Outcome. A second delivery finds the outcome and does nothing."""
    context, key = _context(), DecisionId(decision_id)
    found = context.store.decisions_by_id([key])
    if not found or context.store.outcomes_by_id([key]):
        return
    decision, _ = found[key]
    context.running.add(key)
    try:
        _told(lambda: context.jobs.mark_running(key))
        outcome = _run(context, decision)
        new = context.store.add_outcome(outcome)
    finally:
        context.running.discard(key)
        _told(lambda: context.jobs.unmark_running(key))
    if new:
        log.info(
            "answered",
            extra={"action": "answer", "decision": key, "arm": decision.arm, "status": outcome.status},
        )
        _told(lambda: context.jobs.tell(f"outcome:{key}"))
        _told(lambda: context.jobs.ring(PolicyLabel(context.store.label)))


def _run(context: Context, decision: Decision) -> Outcome:
    arm = context.arms.get(decision.arm)
    if arm is None:
        # Taken out of the configuration after the draw: an outcome like any other failure, never a lost row.
        return Outcome(
            decision_id=decision.id,
            status="failed",
            answer=None,
            trace=(),
            cost=Cost(),
            steps=0.0,
            stop_reason="unknown_arm",
            error=f"this worker has no arm {decision.arm!r}",
            source="worker",
            made_at=time.time(),
        )
    assert context.retriever is not None
    assert context.generator is not None
    return asyncio.run(
        run_strategy(
            arm,
            decision_id=decision.id,
            question=decision.query.text,
            budget=capped(decision.query.budget, limits=context.settings.budget),
            retriever=context.retriever,
            generator=context.generator,
        )
    )


def learn(label: str) -> int:
    """Learn everything that is ready in this ledger; the number of decisions closed."""
    context = _context()
    learner = context.learner
    if learner is None or label != learner.ledger.label:
        raise NotReady(f"this worker does not learn {label!r}", remedy="start one with --queue learn")
    # The bell comes down first: whatever is written from here on rings it again, so nothing is overlooked.
    _told(lambda: context.jobs.hush(PolicyLabel(label)))
    try:
        return learner.drain(patience_s=context.settings.learning.lease_s + 1)
    except NotReady as error:
        log.info("nothing to learn yet", extra={"action": "learn", "reason": str(error)})
        return 0


def _told(tell: Callable[[], object]) -> None:
    try:
        tell()
    except QueueError as error:
        # Redis only carries the news; SQL has the facts and the pollers find them.
        log.warning("news not told", extra={"action": "tell", "reason": str(error)})


def housekeeping(context: Context, stop: threading.Event) -> None:
    """Until stopped: say which decisions are being run, and sweep. One thread per worker process."""
    interval = context.settings.workers.sweep_interval_s
    next_sweep = time.monotonic() + interval
    while not stop.wait(min(interval, RUNNING_S / 3)):
        try:
            for key in list(context.running):
                context.jobs.mark_running(key)
            if time.monotonic() >= next_sweep:
                next_sweep = time.monotonic() + interval
                sweep(context.ledger, jobs=context.jobs, settings=context.settings, now=time.time())
        except Exception as error:  # a sweep that failed is repeated; the worker must live on
            log.warning("housekeeping failed", extra={"action": "sweep", "reason": str(error)})
