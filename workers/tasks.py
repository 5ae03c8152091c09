"""The jobs, reached by name: "workers.tasks.answer", "workers.tasks.learn". At-least-once in, exactly-once out.

RQ calls these with ids only. What they need (models, database) is loaded once per process and bound here.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from router.edge import capped
from router.errors import NotReady, QueueError, StoreError
from router.jobs import RUNNING_S, RedisJobs
from router.learner import Learner
from router.ledger import Ledger
from router.settings import Settings
from router.store import Store
from router.sweep import sweep
from router.types import ArmName, Cost, Decision, DecisionId, Json, Outcome, PolicyLabel
from strategies.base import Generator, Retriever, Strategy
from strategies.runner import made_by, run_strategy

__all__ = ["MAX_TRIES", "Context", "LoopThread", "answer", "bind", "housekeeping", "learn"]

log = logging.getLogger("ragbandit.worker")

Reply = TypeVar("Reply")

#: a question that was tried this often and never came to an outcome has killed its workers, and is given up
MAX_TRIES = 3
#: a client that does not close within that long is left to the end of the process
CLOSE_S = 5.0


class LoopThread:
    """An event loop in a thread of its own: HTTP clients and the like are bound to a loop and live across jobs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ragbandit-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Reply], *, timeout_s: float | None = None) -> Reply:
        """What the coroutine returns or raises; TimeoutError after timeout_s.

        If the wait is interrupted (RQ's timeout raises in the waiting thread), the coroutine is cancelled.
        """
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result(timeout_s)
        except BaseException:
            waiting.cancel()  # does nothing where the coroutine itself raised
            raise

    def close(self) -> None:
        """Cancel what still runs and end the thread. A second time does nothing."""
        if self._loop.is_closed():
            return
        try:
            self.run(_cancel_all(), timeout_s=CLOSE_S)
        except TimeoutError:
            log.warning("something does not let itself be cancelled", extra={"action": "close"})
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_all() -> None:
    """Cancel every other task of this loop and wait for them, and for the threads of its pool."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


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
    #: where arms run; made when the answer queue is served
    loop: LoopThread | None = None
    #: decisions this process is running now
    running: set[DecisionId] = field(default_factory=set)

    def close(self) -> None:
        """Close generator and retriever on the loop they lived on, then the loop; a failure is logged."""
        loop, self.loop = self.loop, None
        if loop is None:
            return
        for part in (self.generator, self.retriever):
            if part is None:
                continue
            try:
                loop.run(part.close(), timeout_s=CLOSE_S)
            except Exception as error:  # the process ends anyway; the database must still be closed
                log.warning("not closed", extra={"action": "close", "part": part.name, "reason": repr(error)})
        loop.close()


_bound: list[Context] = []


def bind(context: Context) -> None:
    """Make this the process's context; RQ gives a job nothing but its arguments."""
    _bound[:] = [context]


def _context() -> Context:
    if not _bound:
        raise NotReady("this process has loaded nothing", remedy="start workers with: ragbandit worker")
    return _bound[0]


def answer(decision_id: str) -> None:
    """Run the drawn arm of a decision and keep its Outcome. A second delivery finds the outcome and does nothing.

    After MAX_TRIES runs that ended without an outcome (the worker died, or the job's time ran out) the next one
    writes the outcome "worker_died" instead. With Redis down nothing is counted.
    """
    context, key = _context(), DecisionId(decision_id)
    found = context.store.decisions_by_id([key])
    if not found or context.store.outcomes_by_id([key]):
        return
    decision, _ = found[key]
    if isinstance(decision, StoreError):
        log.error("decision unreadable", extra={"action": "answer", "decision": key, "reason": str(decision)})
        context.store.add_outcome(_unrun(key, stop_reason="unreadable", error=str(decision)))
        return
    context.running.add(key)
    try:
        _told(lambda: context.jobs.mark_running(key))
        # Counted before the run: a question that kills its worker leaves nothing but this number behind.
        tries = _told(lambda: context.jobs.count_try(key)) or 0
        outcome = _run(context, decision) if tries <= MAX_TRIES else _given_up(context, decision, tries=tries)
        new = context.store.add_outcome(outcome)
        _told(lambda: context.jobs.forget_tries(key))
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
        return _unrun(decision.id, stop_reason="unknown_arm", error=f"this worker has no arm {decision.arm!r}")
    assert context.retriever is not None
    assert context.generator is not None
    assert context.loop is not None
    return context.loop.run(
        run_strategy(
            arm,
            query=replace(decision.query, id=decision.id),
            budget=capped(decision.query.budget, limits=context.settings.budget),
            retriever=context.retriever,
            generator=context.generator,
        )
    )


def _given_up(context: Context, decision: Decision, *, tries: int) -> Outcome:
    arm = context.arms.get(decision.arm)
    log.error("given up", extra={"action": "answer", "decision": decision.id, "arm": decision.arm, "tries": tries})
    known: Mapping[str, Json] = {}
    if arm is not None and context.retriever is not None and context.generator is not None:
        budget = capped(decision.query.budget, limits=context.settings.budget)
        known = made_by(arm, budget=budget, retriever=context.retriever, generator=context.generator)
    return _unrun(
        decision.id,
        stop_reason="worker_died",
        error=f"{tries - 1} workers died or ran out of time over this question with the arm {decision.arm!r}",
        made_by=known,
    )


def _unrun(
    decision_id: DecisionId, *, stop_reason: str, error: str, made_by: Mapping[str, Json] | None = None
) -> Outcome:
    """The failure of a decision whose arm did not run: it cost nothing."""
    return Outcome(
        decision_id=decision_id,
        status="failed",
        answer=None,
        trace=(),
        cost=Cost(),
        steps=0.0,
        stop_reason=stop_reason,
        error=error,
        run_by="worker",
        made_by=made_by or {},
        made_at=time.time(),
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
        done = learner.drain(patience_s=context.settings.learning.lease_s + 1)
    except NotReady as error:
        log.info("nothing to learn yet", extra={"action": "learn", "reason": str(error)})
        return 0
    if done:  # a drain ends after a while even if there is more
        _told(lambda: context.jobs.ring(PolicyLabel(label)))
    return done


def _told(tell: Callable[[], Reply]) -> Reply | None:
    """What Redis says, or None if it cannot be reached."""
    try:
        return tell()
    except QueueError as error:
        # Redis only carries the news; SQL has the facts and the pollers find them.
        log.warning("news not told", extra={"action": "tell", "reason": str(error)})
        return None


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
