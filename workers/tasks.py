"""Jobs of a worker process: `answer` runs an arm, `learn` learns from feedback. Delivered at least once, done once.

A job carries an id only. What it needs (models, database) is loaded once per process and kept in a Context. Several
threads of a process call `answer` at a time; the arms themselves share one event loop.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import NotReady, RagBanditError, SnapshotError, StoreError
from ragbandit.router.jobs.notifier import Notifier
from ragbandit.router.jobs.queue import RedisJobs
from ragbandit.router.jobs.streams.writer import StreamWriter
from ragbandit.router.learning.learner import Learner
from ragbandit.router.rollouts.served import settings_of
from ragbandit.router.serving.validation import capped, unrun_outcome
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.telemetry.carriers import REQUEST_ID, trace_id_of
from ragbandit.router.telemetry.logs import bound
from ragbandit.router.telemetry.tracing import OFF, Tracing
from ragbandit.router.types import CANCELLED, ArmName, Budget, Decision, DecisionId, Json, Outcome, PolicyLabel
from ragbandit.strategies.base import Generator, Retriever
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.run import Strategy
from ragbandit.strategies.runner import CANCELLED_ERROR, made_by, run_strategy
from ragbandit.workers.active_runs import ActiveRuns
from ragbandit.workers.event_loop import CLOSE_S, EventLoop
from ragbandit.workers.judge.job import Judging
from ragbandit.workers.store_outage import StoreOutage
from ragbandit.workers.tracing import spans_of, traced_run
from ragbandit.workers.wiring.arms import arm_params

__all__ = ["KEEP_S", "LEARN_S", "MARGIN_S", "MAX_TRIES", "PING_S", "AnswerJob", "Context", "answer", "drain", "learn"]

log = logging.getLogger("ragbandit.worker")

#: a question that was tried this often and never came to an outcome has killed its workers, and is given up
MAX_TRIES = 3
#: an arm that has not ended so long after its seconds ran out is left: it blocks the loop, or refuses to be cut off
MARGIN_S = 5.0
#: an event loop that does not respond for that long is blocked
PING_S = 5.0
#: how often a question that waits for its turn looks whether it is still wanted
LOOK_S = 0.5
#: how long an outcome is kept in hand that the database does not take
KEEP_S = 600.0
#: longest pause between two attempts to write it
KEEP_PAUSE_S = 10.0
#: how long a learn job tries again while the store fails; after that the next sweep queues another one
LEARN_S = 60.0


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
    #: held by a run whose question has had all tries but the last
    retrying: threading.Lock = field(default_factory=threading.Lock)
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

    def __post_init__(self) -> None:
        self.notifier = Notifier(self.jobs, label=self.store.label, answer_s=self.settings.budget.seconds)

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


def answer(context: Context, decision_id: str) -> None:
    """Run the drawn arm of a decision and keep its Outcome. A second delivery finds the outcome and does nothing.

    After MAX_TRIES runs that ended without an outcome (the worker died, or the job's time ran out) the next one
    writes the outcome "worker_died" instead. With Redis down nothing is counted. A decision that was cancelled gets
    the outcome "cancelled": without a run, or with what its run had cost. A worker that is told to end may leave a
    decision to the next one, which then counts no try.
    """
    key = DecisionId(decision_id)
    if not context.active_runs.claim(key):
        return  # another thread has it
    try:
        _answer_claimed(context, key)
    finally:
        context.active_runs.release(key)


def _answer_claimed(context: Context, key: DecisionId) -> None:
    task = None
    try:
        task = _task_to_run(context, key)
    finally:
        if task is None:  # the lease came with the job
            context.notifier.attempt(lambda: context.jobs.unmark_running(key))
    if task is None:
        return
    decision, cancelled = task
    request = decision.query.request.get(REQUEST_ID)
    trace = trace_id_of(decision.query.request)
    with bound(request=request if isinstance(request, str) else None, decision=key, trace=trace):
        AnswerJob(context, decision=decision).run(cancelled=cancelled)


def _task_to_run(context: Context, key: DecisionId) -> tuple[Decision, bool] | None:
    """The decision and whether it was cancelled; None: there is nothing to run here."""
    task = context.store.answer_task(key)
    if task is None or task.answered:
        return None
    if isinstance(task.decision, StoreError):
        facts = {"action": "answer", "decision": key, "reason": str(task.decision)}
        log.error("the row of a decision cannot be read; the decision fails", extra=facts)
        outcome = unrun_outcome(key, now=time.time(), stop_reason="unreadable", error=str(task.decision))
        context.store.add_outcome(outcome)
        return None
    if task.decision.run_by != "worker":
        facts = {"action": "answer", "decision": key}
        log.error("a decision was queued that its caller runs; it is left to the caller", extra=facts)
        return None
    if task.cancelled and context.notifier.attempt(lambda: context.jobs.runs_elsewhere(key)):
        return None  # whoever runs it alone knows what it has cost
    return task.decision, task.cancelled


class AnswerJob:
    """One delivery of one decision, from the drawn arm to the kept Outcome. Its thread has claimed the decision."""

    def __init__(self, context: Context, *, decision: Decision) -> None:
        self.context = context
        self.decision = decision
        self._budget = capped(decision.query.budget, limits=context.settings.budget)
        self._stop = context.active_runs.begin(decision)

    def run(self, *, cancelled: bool) -> None:
        """Run the arm unless the decision is cancelled, and keep the Outcome. Raises StoreError, RagBanditError."""
        context, key, kept, left = self.context, self.decision.id, False, False
        facts = {"action": "answer", "decision": key, "arm": self.decision.arm}
        try:
            tries = context.notifier.attempt(lambda: context.jobs.begin_run(key)) or 0
            outcome = self._cancelled() if cancelled else self._outcome(tries)
            if outcome is None:
                left = True
                log.info("not answered, since this worker ends; another worker takes it", extra=facts)
                return
            new = self._keep(outcome)
            kept = True
            if new:
                log.info("answered", extra=facts | {"status": outcome.status})
        finally:
            context.active_runs.end(key)  # before the mark goes: nothing may renew it after that
            context.notifier.attempt(lambda: context.jobs.end_run(key, kept=kept))
            if left:
                context.notifier.attempt(self._queue_again)
        if new:
            context.notifier.notify_learner()

    def _queue_again(self) -> None:
        """Hand the decision to the next worker: it had its turn."""
        seconds, tenant = self.context.settings.budget.seconds, self.decision.query.tenant
        self.context.jobs.enqueue_answer(self.decision.id, tenant=tenant, timeout_s=seconds, front=True)

    def _cancelled(self) -> Outcome:
        return self._without_run(stop_reason=CANCELLED, error=CANCELLED_ERROR)

    def _without_run(self, *, stop_reason: str, error: str, known: Mapping[str, Json] | None = None) -> Outcome:
        return unrun_outcome(
            self.decision.id, now=time.time(), stop_reason=stop_reason, error=error, made_by=known or {}
        )

    def _outcome(self, tries: int) -> Outcome | None:
        """None where this process ends and another one has to run it. tries: begun before."""
        # A question that killed its worker may do so again, and what runs beside it then counts a try as well. Where
        # one more death is the last, one such question runs at a time, so that no other comes to MAX_TRIES with it.
        if tries < MAX_TRIES - 1:
            return self._counted_run()
        lock, ending = self.context.retrying, self.context.ending
        held = False
        while not (held or self._stop.done() or ending.is_set()):
            held = lock.acquire(timeout=LOOK_S)
        try:
            if self._stop.done():
                return self._cancelled()
            return None if ending.is_set() else self._counted_run()
        finally:
            if held:
                lock.release()

    def _counted_run(self) -> Outcome | None:
        """A try counts while the arm runs: only one that ended this process, or overran its time, stays counted."""
        context, key = self.context, self.decision.id
        # Counted before the run: a question that kills its worker leaves nothing but this number behind.
        tries = context.notifier.attempt(lambda: context.jobs.count_try(key)) or 0
        if tries > MAX_TRIES:
            return self._given_up(tries)
        try:
            outcome = self._run_arm(attempt=max(tries, 1))
        except CancelledError:
            if not context.ending.is_set():
                raise  # the arm cancelled itself
            outcome = None
        if tries:
            context.notifier.attempt(lambda: context.jobs.uncount_try(key))
        return outcome

    def _run_arm(self, *, attempt: int) -> Outcome:
        context, decision, budget = self.context, self.decision, self._budget
        arm = context.arms.get(decision.arm) or arm_of_version(context, decision.arm)
        if arm is None:
            # Taken out of the configuration after the draw: an outcome like any other failure, never a lost row.
            return self._without_run(stop_reason="unknown_arm", error=f"this worker has no arm {decision.arm!r}")
        assert context.retriever is not None
        assert context.generator is not None
        assert context.loop is not None
        assert budget.seconds is not None  # the settings have a number
        streams = context.streams
        writer = None if streams is None else streams.open(decision.id, seconds=budget.seconds)
        work = run_strategy(
            arm,
            query=replace(decision.query, id=decision.id),
            budget=budget,
            retriever=context.retriever,
            generator=context.generator,
            stop=self._stop,
            reader=writer,
            source_chars=context.settings.log.source_chars,
            spans=spans_of(context.tracing),
        )
        work = traced_run(context.tracing, work, decision=decision, attempt=attempt)
        try:
            return context.loop.run(work, timeout_s=budget.seconds + MARGIN_S)
        except TimeoutError:
            if not context.loop.answers(within_s=PING_S):
                _end_process(context, loop=context.loop)
            raise
        finally:
            if streams is not None and writer is not None:
                streams.end(writer)

    def _given_up(self, tries: int) -> Outcome:
        decision = self.decision
        facts = {"action": "answer", "decision": decision.id, "arm": decision.arm, "tries": tries - 1}
        log.error("workers died or ran out of time over a question; it fails and is not tried again", extra=facts)
        return self._without_run(
            stop_reason="worker_died",
            error=f"{tries - 1} workers died or ran out of time over this question with the arm {decision.arm!r}",
            known=_made_by(self.context, decision.arm, budget=self._budget),
        )

    def _keep(self, outcome: Outcome) -> bool:
        """Write the outcome; True if it is the decision's first. It is tried for KEEP_S, since the answer was paid for.

        When this process is to end, once more. Raises StoreError after that.
        """
        context, key = self.context, self.decision.id
        give_up, pause = time.monotonic() + KEEP_S, 0.25
        while True:
            last = context.ending.is_set() or time.monotonic() >= give_up
            try:
                return context.store.add_outcome(outcome)
            except StoreError as error:
                if last:
                    if not context.ending.is_set():  # or a row that is refused for ever would be paid for for ever
                        context.notifier.attempt(lambda: context.jobs.count_try(key))
                    raise
                facts = {"action": "keep", "decision": key, "reason": str(error)}
                log.warning("cannot write an outcome to the database; trying again", extra=facts)
            pause = min(KEEP_PAUSE_S, 2 * pause)
            context.ending.wait(min(pause, max(0.0, give_up - time.monotonic())))


def arm_of_version(context: Context, name: ArmName) -> Strategy | None:
    """An arm that a version offers beside the configured ones, made when it is first drawn; None: there is none."""
    with context.store.database.read() as connection:
        versions = versions_of(connection, base=context.store.label)
    for version in reversed(versions):
        offered = version.changes.get("arms")
        if context.generator is None or not isinstance(offered, Mapping) or name not in offered:
            continue
        try:
            params = arm_params(settings_of(context.settings, version))
            made = make_arms({name: params[name]}, capabilities=context.generator.capabilities)
        except (RagBanditError, KeyError) as error:
            facts = {"action": "answer", "arm": name, "version": version.name, "reason": str(error)}
            log.error("the arm of a version cannot be made here: its questions fail", extra=facts)
            return None
        context.arms = {**context.arms, **made}
        return made[name]
    return None


def _made_by(context: Context, arm: ArmName, *, budget: Budget) -> Mapping[str, Json]:
    """The parts that would have made the outcome; nothing where this worker has no such arm."""
    strategy = context.arms.get(arm)
    if strategy is None or context.retriever is None or context.generator is None:
        return {}
    return made_by(strategy, budget=budget, retriever=context.retriever, generator=context.generator)


def _end_process(context: Context, *, loop: EventLoop) -> None:
    """Nothing can be cancelled on a loop that is blocked: a new process, which the supervisor starts, is the cure."""
    facts = {"action": "blocked", "arms": ",".join(context.active_runs.arms()), "at": loop.position()}
    log.critical("an arm blocks the event loop, so this worker ends; make the arm await what it waits for", extra=facts)
    context.store.database.close()
    logging.shutdown()
    os._exit(1)  # an ordinary end would wait for the threads that wait for the loop


def learn(context: Context, label: str) -> int:
    """Learn everything that is ready in this ledger; the number of decisions closed."""
    learner = context.learner
    if learner is None or label != learner.ledger.label:
        raise NotReady(f"this worker does not learn {label!r}", remedy="start one with --queue learn")
    # Cleared first: whatever is written from here on notifies again, so nothing is overlooked.
    context.notifier.attempt(lambda: context.jobs.clear_notification(PolicyLabel(label)))
    context.wake_versions()
    done = _drained(context, learner)
    if done:  # a drain ends after a while even if there is more
        context.notifier.notify_learner()
    return done


def _drained(context: Context, learner: Learner) -> int:
    """The number of decisions closed, 0 if nothing can be learned now. While the store fails, tried for LEARN_S."""
    give_up, pause = time.monotonic() + LEARN_S, 0.25
    while True:
        try:
            return drain(context, learner, patience_s=context.settings.learning.lease_s + 1)
        except NotReady as error:
            log.info("nothing can be learned yet", extra={"action": "learn", "reason": str(error)})
            return 0
        except (StoreError, SnapshotError):  # logged once per outage
            if context.ending.is_set() or time.monotonic() >= give_up:
                return 0
        pause = min(KEEP_PAUSE_S, 2 * pause)
        context.ending.wait(min(pause, max(0.0, give_up - time.monotonic())))


def drain(context: Context, learner: Learner, *, patience_s: float = 0.0) -> int:
    """As Learner.drain. A store that fails is logged once per outage, and /ready shows it. Raises what drain raises."""
    outage, label = context.learning, learner.ledger.label
    failing = outage.lasts
    try:
        done = learner.drain(patience_s=patience_s)
    except (StoreError, SnapshotError) as error:
        outage.failed(error)
        said = str(error)
        context.notifier.attempt(lambda: context.jobs.set_learner_fault(label, said))
        raise
    if failing:
        outage.ended()
        context.notifier.attempt(lambda: context.jobs.set_learner_fault(label, None))
    return done
