"""Housekeeping: the threads of a worker process beside its jobs. Each runs until `stop` is set."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ragbandit.router.queue.streams.reader import STREAM_NEWS
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.serving.answers import cancellation
from ragbandit.router.serving.answers.recovery import recover
from ragbandit.router.storage.totals.extending import Extender
from ragbandit.shared.errors import QueueError
from ragbandit.shared.process_identity import lease_holder
from ragbandit.shared.types import DecisionId
from ragbandit.workers.context import Context, StoreOutage

T = TypeVar("T")

log = logging.getLogger("ragbandit.worker")

#: how often a process renews its claims and looks for those of processes that have ended, seconds
CLAIMS_S: Final = 1.0
#: how often a worker looks in SQL for runs that were cancelled, seconds, at most
CANCELLED_S: Final = 5.0
#: decisions that a log line names
SHOWN: Final = 5
#: how often the hourly totals are extended, seconds
TOTALS_S: Final = 5.0
#: longest step of it, and its pause while there is more to read
TOTALS_STEP_S: Final = 2.0


def handle_notification(context: Context, notification: str) -> None:
    """At "cancel:<id>" of a run that is active here, find in the database which runs are to be stopped.

    At "stream:<id>" of one, it gives its answer out from now on.
    """
    kind, _, key = notification.partition(":")
    if kind == STREAM_NEWS and context.streams is not None:
        context.streams.wanted(DecisionId(key))
    if kind == "cancel" and key in context.active_runs.ids():
        _stop_cancelled(context)


def stop_cancelled(context: Context, stop: threading.Event) -> None:
    """Stop runs that were cancelled, of which no notification told."""
    outage = _outage("look for cancelled decisions")
    while not stop.wait(min(context.settings.workers.sweep_interval_s, CANCELLED_S)):
        _attempt(_stop_cancelled, context, outage=outage)


def ring_again(context: Context, stop: threading.Event) -> None:
    """Repeat notifications that were lost."""
    outage = _outage("look for unfinished decisions")
    while not stop.wait(context.settings.workers.sweep_interval_s):
        _attempt(_recover, context, outage=outage)


def keep_claims(context: Context, stop: threading.Event) -> None:
    """Renew the claims of what runs here, and let be claimed again what processes ran that have ended."""
    outage = _outage("renew the claims of what runs here")
    while not stop.wait(CLAIMS_S):
        _attempt(_keep_claims, context, outage=outage)


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


def _stop_cancelled(context: Context) -> None:
    for key in cancellation.requested(context.store.database, ids=context.active_runs.ids()):
        if context.active_runs.stop(key):
            log.info("a run was cancelled by its caller", extra={"action": "cancel", "decision": key})


def _keep_claims(context: Context) -> None:
    held = context.active_runs.ids()
    context.queue.renew(held)
    lost = context.queue.free_lost(held=context.active_runs.ids())
    if lost:
        facts = {"action": "requeue", "count": len(lost), "decisions": ", ".join(lost[:SHOWN])}
        log.warning("a worker process ended while it ran decisions; they are queued again, in front", extra=facts)
        context.notifier.request_answers(lost)


def _recover(context: Context) -> None:
    recover(context.store.database, jobs=context.jobs, settings=context.settings, now=time.time())
