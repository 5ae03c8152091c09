"""Housekeeping: what a worker process does beside its jobs, each in a thread of its own."""

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from ragbandit.router.queue.stream_reader import STREAM_NEWS
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.serving import pending
from ragbandit.router.serving.pending import recover
from ragbandit.router.storage.totals.traffic import Extender
from ragbandit.shared.child_process import lease_holder
from ragbandit.shared.types import DecisionId
from ragbandit.workers.checks.job import LOOK_S as CHECK_S
from ragbandit.workers.checks.job import AnswerChecks
from ragbandit.workers.checks.process import check_reward_check
from ragbandit.workers.context import Context
from ragbandit.workers.learning import version_learning
from ragbandit.workers.outages import Routine

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
        stop_cancelled(context)


def routines_of(context: Context) -> list[Routine]:
    """The threads of this process beside its jobs.

    Every worker stops runs that were cancelled, of which no notification told, and renews the claims of what it runs.
    One that learns repeats lost notifications, extends the hourly totals, learns for versions, and looks at those
    in shadow or canary; of all that share a store one does each at a time. It checks answers as well.
    """
    settings, database = context.settings, context.store.database
    sweep_s = settings.workers.sweep_interval_s
    if context.learner is not None:
        check_reward_check(settings.reward)
    routines = [
        Routine("look for cancelled runs", partial(stop_cancelled, context), every_s=min(sweep_s, CANCELLED_S)),
        Routine("renew the claims of what runs here", partial(keep_claims, context), every_s=CLAIMS_S),
    ]
    if context.learner is None:
        return routines
    extender = Extender(database, holder=lease_holder("totals"), weight=settings.reward.weight)
    evaluator = Evaluator(database, settings=settings)

    def wake_again() -> None:
        recover(database, jobs=context.jobs, settings=settings, now=time.time())

    def extend_totals() -> float:
        return TOTALS_STEP_S if extender.extend(seconds=TOTALS_STEP_S) else TOTALS_S

    def watch_rollouts() -> None:
        evaluator.evaluate(now=time.time())

    watch_s = settings.rollout.interval_s
    return [
        *routines,
        Routine("look for unfinished decisions", wake_again, every_s=sweep_s),
        Routine("extend the hourly totals", extend_totals, every_s=TOTALS_S, at_end=extender.release),
        Routine("look at policy versions", watch_rollouts, every_s=watch_s, at_end=evaluator.close),
        version_learning(context),
        *_checks(context),
    ]


def _checks(context: Context) -> Iterator[Routine]:
    """What checks answers, one at a time; several workers that learn check several."""
    if context.settings.reward.check is not None:
        checks = AnswerChecks(context)
        yield Routine("check answers", checks.run, every_s=CHECK_S, at_end=checks.close)


def stop_cancelled(context: Context) -> None:
    """Stop the runs here that their callers have cancelled, as the database says."""
    for key in pending.requested(context.store.database, ids=context.active_runs.ids()):
        if context.active_runs.stop(key):
            log.info("a run was cancelled by its caller", extra={"action": "cancel", "decision": key})


def keep_claims(context: Context) -> None:
    """Renew the claims of what runs here, and let be claimed again what processes ran that have ended."""
    context.queue.renew(context.active_runs.ids())
    lost = context.queue.free_lost(held=context.active_runs.ids())
    if lost:
        facts = {"action": "requeue", "count": len(lost), "decisions": ", ".join(lost[:SHOWN])}
        log.warning("a worker process ended while it ran decisions; they are queued again, in front", extra=facts)
        context.notifier.request_answers(lost)
