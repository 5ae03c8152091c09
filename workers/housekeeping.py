"""Housekeeping: the threads of a worker process beside its jobs. Each runs until `stop` is set."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ragbandit.router.errors import NotReady, QueueError, SnapshotError, StoreError
from ragbandit.router.jobs.run_leases import LOOK_S
from ragbandit.router.jobs.streams.reader import STREAM_NEWS
from ragbandit.router.process_identity import lease_holder
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.serving import cancellation
from ragbandit.router.serving.recovery import recover
from ragbandit.router.storage.arm_hours.extending import Extender
from ragbandit.router.types import DecisionId
from ragbandit.workers.store_outage import StoreOutage
from ragbandit.workers.tasks import Context, drain

__all__ = ["handle_notification", "keep_house", "keep_leases", "keep_totals", "learn_without_redis", "watch_rollouts"]

T = TypeVar("T")

log = logging.getLogger("ragbandit.worker")

#: how often a worker looks in SQL for runs that were cancelled, seconds, at most
CANCELLED_S: Final = 5.0
#: decisions that a log line names
SHOWN: Final = 5
#: how often the hourly totals are extended, seconds
TOTALS_S: Final = 5.0
#: longest step of it, and its pause while there is more to read: a store of before is caught up beside the learning
TOTALS_STEP_S: Final = 2.0


def handle_notification(context: Context, notification: str) -> None:
    """At "cancel:<id>" of a run that is active here, find in the database which runs are to be stopped.

    At "stream:<id>" of one, it gives its answer out from now on.
    """
    kind, _, key = notification.partition(":")
    if kind == STREAM_NEWS and context.streams is not None:
        context.streams.wanted(DecisionId(key))
    if kind == "cancel" and key in context.active_runs.ids():
        # Redis may have forgotten the lease: whoever is asked to end this decision must see that it is run here.
        context.notifier.attempt(lambda: _mark_running(context))
        _stop_cancelled(context)


def keep_house(context: Context, stop: threading.Event) -> None:
    """Stop runs that were cancelled, and repeat notifications that were lost."""
    interval = context.settings.workers.sweep_interval_s
    stopping, recovering = _outage("look for cancelled decisions"), _outage("look for unfinished decisions")
    next_recovery = time.monotonic() + interval
    while not stop.wait(min(interval, CANCELLED_S)):
        _attempt(_stop_cancelled, context, outage=stopping)
        if time.monotonic() >= next_recovery:  # for itself: with Redis gone a cancellation must still be found
            next_recovery = time.monotonic() + interval
            _attempt(_recover, context, outage=recovering)


def keep_leases(context: Context, stop: threading.Event) -> None:
    """Renew the leases of what runs here, and queue again what dead processes ran.

    A thread of its own, which no database can hold up.
    """
    outage = _outage("renew the leases of what runs here")
    while not stop.wait(LOOK_S):
        _attempt(_mark_running, context, outage=outage)
        _attempt(_requeue_lost, context, outage=outage)


def learn_without_redis(context: Context, stop: threading.Event) -> None:
    """While Redis cannot be reached, learn by polling the database: notifications make learning quick, no more."""
    interval = context.settings.workers.sweep_interval_s
    polling, outage = False, _outage("learn")
    while not stop.wait(interval):
        if not context.jobs.outage.lasts:
            polling = False
            continue
        if not polling:
            polling = True
            facts = {"action": "learn", "every_s": interval}
            log.info("Redis is not reachable: learning goes on by polling the database", extra=facts)
        _attempt(_poll_ledger, context, outage=outage)


def keep_totals(context: Context, stop: threading.Event) -> None:
    """Extend the hourly totals of the arms; one process of all that share the store does it at a time."""
    outage = _outage("extend the hourly totals")
    extender = Extender(context.store.database, holder=lease_holder("totals"))
    wait_s = 0.0
    while not stop.wait(wait_s):
        more = _attempt(lambda _: extender.extend(seconds=TOTALS_STEP_S), context, outage=outage)
        wait_s = TOTALS_STEP_S if more else TOTALS_S
    _attempt(lambda _: extender.release(), context, outage=outage)


def watch_rollouts(context: Context, stop: threading.Event) -> None:
    """Look at the versions that are in shadow or canary; of all workers that do, one at a time."""
    evaluator = Evaluator(context.store.database, settings=context.settings)
    outage = _outage("look at policy versions")
    while not stop.wait(context.settings.rollout.interval_s):
        _attempt(lambda _context: evaluator.evaluate(now=time.time()), context, outage=outage)
    _attempt(lambda _context: evaluator.close(), context, outage=outage)


def _outage(chore: str) -> StoreOutage:
    return StoreOutage(
        action="housekeeping",
        failing=f"cannot {chore}; trying again, and nothing is lost. Make the database reachable",
        restored=f"can {chore} again",
    )


def _attempt(chore: Callable[[Context], T], context: Context, *, outage: StoreOutage) -> T | None:
    """Do a chore; what fails is logged and repeated the next time, since the thread must live on."""
    try:
        done = chore(context)
        outage.ended()
        return done
    except QueueError:
        pass  # logged once per outage
    except Exception as error:
        outage.failed(error)
    return None


def _poll_ledger(context: Context) -> None:
    assert context.learner is not None
    try:
        drain(context, context.learner)
    except NotReady as error:
        log.debug("nothing can be learned yet", extra={"action": "learn", "reason": str(error)})
    except (StoreError, SnapshotError):
        pass  # logged once per outage


def _stop_cancelled(context: Context) -> None:
    for key in cancellation.requested(context.store.database, ids=context.active_runs.ids()):
        if context.active_runs.stop(key):
            log.info("a run was cancelled by its caller", extra={"action": "cancel", "decision": key})


def _mark_running(context: Context) -> None:
    # Not through the notifier, which pauses after an outage: others would take this process for dead meanwhile.
    marked = context.active_runs.ids()
    context.jobs.mark_running(*marked)
    ended = set(marked) - set(context.active_runs.ids())
    if ended:  # while we were at it: their leases must not outlive them
        context.jobs.unmark_running(*ended)


def _requeue_lost(context: Context) -> None:
    held = context.active_runs.claimed()
    lost = context.jobs.requeue_lost(held=held, timeout_s=context.settings.budget.seconds)
    if lost:
        facts = {"action": "requeue", "count": len(lost), "decisions": ", ".join(lost[:SHOWN])}
        log.warning("a worker process ended while it ran decisions; they are queued again, in front", extra=facts)


def _recover(context: Context) -> None:
    # One process of all that share this Redis: a pass reads the whole queue.
    if not context.jobs.claim_recovery(context.store.label, for_s=0.9 * context.settings.workers.sweep_interval_s):
        return
    recover(context.ledger, jobs=context.jobs, settings=context.settings, now=time.time())
