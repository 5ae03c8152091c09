"""The jobs, reached by name: "workers.tasks.answer", "workers.tasks.learn". At-least-once in, exactly-once out.

RQ calls these with ids only. What they need (models, database) is loaded once per process and bound here. Several
threads of a process call `answer` at a time; the arms themselves share one event loop.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import NotReady, QueueError, StoreError
from ragbandit.router.jobs.queue import RUNNING_S, RedisJobs
from ragbandit.router.learning.learner import Learner
from ragbandit.router.serving import cancellation as cancellations
from ragbandit.router.serving.recovery import sweep
from ragbandit.router.serving.validation import capped, unrun_outcome
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.types import CANCELLED, ArmName, Decision, DecisionId, Json, Outcome, PolicyLabel
from ragbandit.strategies.base import Generator, Retriever
from ragbandit.strategies.run import Strategy
from ragbandit.strategies.runner import CANCELLED_ERROR, made_by, run_strategy
from ragbandit.workers.active_runs import Running
from ragbandit.workers.event_loop import CLOSE_S, LoopThread

__all__ = [
    "KEEP_S",
    "MARGIN_S",
    "MAX_TRIES",
    "PING_S",
    "Context",
    "answer",
    "bind",
    "hear",
    "housekeeping",
    "keep_marked",
    "learn",
]

log = logging.getLogger("ragbandit.worker")

Reply = TypeVar("Reply")

#: a question that was tried this often and never came to an outcome has killed its workers, and is given up
MAX_TRIES = 3
#: an arm that has not ended so long after its seconds ran out is left: it blocks the loop, or refuses to be cut off
MARGIN_S = 5.0
#: an event loop that gets to nothing for that long is blocked
PING_S = 5.0
#: how often a question that waits for its turn looks whether it is still wanted
LOOK_S = 0.5
#: how long an outcome is kept in hand that the database does not take
KEEP_S = 600.0
#: longest pause between two attempts to write it
KEEP_PAUSE_S = 10.0
#: how long Redis is left alone after it could not be reached
BREAK_S = 2.0


@dataclass(kw_only=True)
class Context:
    """What a worker process has loaded."""

    settings: Settings
    store: DecisionStore
    ledger: Ledger
    jobs: RedisJobs
    learner: Learner | None = None
    arms: Mapping[ArmName, Strategy] = field(default_factory=dict)
    retriever: Retriever | None = None
    generator: Generator | None = None
    #: where arms run; made when the answer queue is served
    loop: LoopThread | None = None
    #: decisions this process is running now
    running: Running = field(default_factory=Running)
    #: held by a run that is not its question's first
    again: threading.Lock = field(default_factory=threading.Lock)
    #: set when this process is to end: nothing new is begun
    ending: threading.Event = field(default_factory=threading.Event)
    #: Redis is left alone until then (time.monotonic)
    quiet_until: float = 0.0

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
    writes the outcome "worker_died" instead. With Redis down nothing is counted. A decision that was cancelled gets
    the outcome "cancelled": without a run, or with what its run had cost. A worker that is told to end may leave a
    decision to the next one, which then counts no try.
    """
    context, key = _context(), DecisionId(decision_id)
    found = context.store.decisions_by_id([key])
    if not found:
        return
    decision, _ = found[key]
    if isinstance(decision, StoreError):
        log.error("decision unreadable", extra={"action": "answer", "decision": key, "reason": str(decision)})
        context.store.add_outcome(unrun_outcome(key, now=time.time(), stop_reason="unreadable", error=str(decision)))
        return
    stop = None if _ends_elsewhere(context, key) else context.running.begin(decision)
    if stop is None:
        return
    try:
        if not context.store.outcomes_by_id([key]):
            _answer(context, decision, stop=stop)
    finally:
        context.running.end(key)
        _told(context, lambda: context.jobs.unmark_running(key))


def _ends_elsewhere(context: Context, key: DecisionId) -> bool:
    """Whether a cancelled decision is run by another worker, which alone can tell what it cost."""
    cancelled = cancellations.asked(context.store.database, ids=[key])
    return bool(cancelled and _told(context, lambda: context.jobs.is_running(key)))


def _answer(context: Context, decision: Decision, *, stop: "Future[None]") -> None:
    key = decision.id
    _told(context, lambda: context.jobs.mark_running(key))
    outcome = _outcome(context, decision, stop=stop)
    if outcome is None:
        log.info("left to the next worker", extra={"action": "leave", "decision": key, "arm": decision.arm})
        return
    new = _kept(context, outcome)
    _told(context, lambda: context.jobs.forget_tries(key))
    if new:
        log.info(
            "answered",
            extra={"action": "answer", "decision": key, "arm": decision.arm, "status": outcome.status},
        )
        _told(context, lambda: context.jobs.tell(f"outcome:{key}"))
        _told(context, lambda: context.jobs.ring(PolicyLabel(context.store.label)))


def _outcome(context: Context, decision: Decision, *, stop: "Future[None]") -> Outcome | None:
    """None where this process ends and another one has to run it."""
    if cancellations.asked(context.store.database, ids=[decision.id]):
        return unrun_outcome(decision.id, now=time.time(), stop_reason=CANCELLED, error=CANCELLED_ERROR)
    # A question that killed its worker may do so again, and what runs beside it then counts a try as well. At most
    # one such question runs at a time, so that the others do not come to MAX_TRIES along with it.
    if not _told(context, lambda: context.jobs.tries(decision.id)):
        return _counted_run(context, decision, stop=stop)
    held = False
    while not (held or stop.done() or context.ending.is_set()):
        held = context.again.acquire(timeout=LOOK_S)
    try:
        if stop.done():
            return unrun_outcome(decision.id, now=time.time(), stop_reason=CANCELLED, error=CANCELLED_ERROR)
        return None if context.ending.is_set() else _counted_run(context, decision, stop=stop)
    finally:
        if held:
            context.again.release()


def _counted_run(context: Context, decision: Decision, *, stop: "Future[None]") -> Outcome | None:
    """A try counts while the arm runs: only one that ended this process, or overran its time, stays counted."""
    # Counted before the run: a question that kills its worker leaves nothing but this number behind.
    tries = _told(context, lambda: context.jobs.count_try(decision.id)) or 0
    if tries > MAX_TRIES:
        return _given_up(context, decision, tries=tries)
    try:
        outcome = _run(context, decision, stop=stop)
    except CancelledError:
        if not context.ending.is_set():
            raise  # the arm cancelled itself
        outcome = None
    if tries:
        _told(context, lambda: context.jobs.uncount_try(decision.id))
    return outcome


def _kept(context: Context, outcome: Outcome) -> bool:
    """Whether it is the decision's first outcome. The database is offered it for KEEP_S: it was paid for.

    When this process is to end, once more. Raises StoreError after that.
    """
    give_up, pause = time.monotonic() + KEEP_S, 0.25
    while True:
        last = context.ending.is_set() or time.monotonic() >= give_up
        try:
            return context.store.add_outcome(outcome)
        except StoreError as error:
            if last:
                if not context.ending.is_set():  # or a row that is refused for ever would be paid for for ever
                    _told(context, lambda: context.jobs.count_try(outcome.decision_id))
                raise
            facts = {"action": "keep", "decision": outcome.decision_id, "reason": str(error)}
            log.warning("outcome not kept yet", extra=facts)
        pause = min(KEEP_PAUSE_S, 2 * pause)
        context.ending.wait(min(pause, max(0.0, give_up - time.monotonic())))


def _run(context: Context, decision: Decision, *, stop: "Future[None]") -> Outcome:
    arm = context.arms.get(decision.arm)
    if arm is None:
        # Taken out of the configuration after the draw: an outcome like any other failure, never a lost row.
        return unrun_outcome(
            decision.id, now=time.time(), stop_reason="unknown_arm", error=f"this worker has no arm {decision.arm!r}"
        )
    assert context.retriever is not None
    assert context.generator is not None
    assert context.loop is not None
    budget = capped(decision.query.budget, limits=context.settings.budget)
    assert budget.seconds is not None  # the settings have a number
    work = run_strategy(
        arm,
        query=replace(decision.query, id=decision.id),
        budget=budget,
        retriever=context.retriever,
        generator=context.generator,
        stop=stop,
    )
    try:
        return context.loop.run(work, timeout_s=budget.seconds + MARGIN_S)
    except TimeoutError:
        if not context.loop.answers(within_s=PING_S):
            _end_process(context, loop=context.loop)
        raise


def _end_process(context: Context, *, loop: LoopThread) -> None:
    """Nothing can be cancelled on a loop that is blocked: a new process, which the supervisor starts, is the cure."""
    facts = {"action": "blocked", "arms": ",".join(context.running.arms()), "at": loop.position()}
    log.critical("an arm blocks the event loop: the worker ends", extra=facts)
    context.store.database.close()
    logging.shutdown()
    os._exit(1)  # an ordinary end would wait for the threads that wait for the loop


def _given_up(context: Context, decision: Decision, *, tries: int) -> Outcome:
    arm = context.arms.get(decision.arm)
    log.error("given up", extra={"action": "answer", "decision": decision.id, "arm": decision.arm, "tries": tries})
    known: Mapping[str, Json] = {}
    if arm is not None and context.retriever is not None and context.generator is not None:
        budget = capped(decision.query.budget, limits=context.settings.budget)
        known = made_by(arm, budget=budget, retriever=context.retriever, generator=context.generator)
    return unrun_outcome(
        decision.id,
        now=time.time(),
        stop_reason="worker_died",
        error=f"{tries - 1} workers died or ran out of time over this question with the arm {decision.arm!r}",
        made_by=known,
    )


def learn(label: str) -> int:
    """Learn everything that is ready in this ledger; the number of decisions closed."""
    context = _context()
    learner = context.learner
    if learner is None or label != learner.ledger.label:
        raise NotReady(f"this worker does not learn {label!r}", remedy="start one with --queue learn")
    # The bell comes down first: whatever is written from here on rings it again, so nothing is overlooked.
    _told(context, lambda: context.jobs.hush(PolicyLabel(label)))
    try:
        done = learner.drain(patience_s=context.settings.learning.lease_s + 1)
    except NotReady as error:
        log.info("nothing to learn yet", extra={"action": "learn", "reason": str(error)})
        return 0
    if done:  # a drain ends after a while even if there is more
        _told(context, lambda: context.jobs.ring(PolicyLabel(label)))
    return done


def _told(context: Context, tell: Callable[[], Reply]) -> Reply | None:
    """What Redis says, or None if it cannot be reached, or just could not be."""
    if time.monotonic() < context.quiet_until:
        return None  # a question has many calls around it, which are not to wait for a Redis that hangs one by one
    try:
        return tell()
    except QueueError as error:
        context.quiet_until = time.monotonic() + BREAK_S
        # Redis only carries the news; SQL has the facts and the pollers find them.
        log.warning("news not told", extra={"action": "tell", "reason": str(error)})
        return None


def hear(context: Context, news: str) -> None:
    """Heed a line of news: at "cancel:<id>" of a run that is under way here, look which ones are to be stopped."""
    kind, _, key = news.partition(":")
    if kind == "cancel" and key in context.running.ids():
        # Redis may have forgotten the mark: whoever is asked to end this decision must see that it is run here.
        _told(context, lambda: _mark_running(context))
        _stop_cancelled(context)


def housekeeping(context: Context, stop: threading.Event) -> None:
    """Until stopped: stop what was cancelled, and sweep. One thread per process."""
    interval = context.settings.workers.sweep_interval_s
    next_sweep = time.monotonic() + interval
    while not stop.wait(min(interval, RUNNING_S / 3)):
        chores = [_stop_cancelled]
        if time.monotonic() >= next_sweep:
            next_sweep = time.monotonic() + interval
            chores.append(_sweep)
        for chore in chores:  # each for itself: with Redis gone a cancellation must still be found
            try:
                chore(context)
            except Exception as error:  # what failed is repeated; the worker must live on
                log.warning("housekeeping failed", extra={"action": "sweep", "reason": str(error)})


def keep_marked(context: Context, stop: threading.Event) -> None:
    """Until stopped: say which decisions are being run. A thread of its own, which no database can hold up."""
    while not stop.wait(min(context.settings.workers.sweep_interval_s, RUNNING_S / 3)):
        try:
            _told(context, lambda: _mark_running(context))
        except Exception as error:  # the marks must not fade for want of this thread
            log.warning("marks not renewed", extra={"action": "mark", "reason": repr(error)})


def _stop_cancelled(context: Context) -> None:
    for key in cancellations.asked(context.store.database, ids=context.running.ids()):
        if context.running.stop(key):
            log.info("cancelled", extra={"action": "cancel", "decision": key})


def _mark_running(context: Context) -> None:
    marked = context.running.ids()
    for key in marked:
        context.jobs.mark_running(key)
    for key in set(marked) - set(context.running.ids()):
        context.jobs.unmark_running(key)  # it ended while we were at it: its mark must not outlive it


def _sweep(context: Context) -> None:
    sweep(context.ledger, jobs=context.jobs, settings=context.settings, now=time.time())
