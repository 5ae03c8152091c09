"""What processes learn from each other through the store: cancelled runs, lost claims."""

import logging

from ragbandit.router.storage.cancellations import cancellations_of
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context

log = logging.getLogger("ragbandit.worker")


class CancelledRuns(Chore):
    """Stops runs whose callers have cancelled them, in case Redis brings no notification."""

    title = "look for cancelled runs"
    of_learner = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.every_s = min(context.settings.workers.sweep_interval_s, 5.0)

    def do(self) -> None:
        stop_cancelled_runs(self.context)


def stop_cancelled_runs(context: Context) -> None:
    for key in cancellations_of(context.store.database, ids=context.active_runs.running_ids()):
        if context.active_runs.stop(key):
            log.info("a run was cancelled by its caller", extra={"action": "cancel", "decision": key})


class RenewedClaims(Chore):
    title = "renew the claims of what runs here"
    every_s = 0.5
    of_learner = False

    def do(self) -> None:
        renew_claims(self.context)


def renew_claims(context: Context) -> None:
    """Renew the claims of this process, and queue the decisions again that ended processes had claimed."""
    for claims, active in context.claims_with_runs():
        claims.renew(active.claimed_ids())
        freed = claims.free_lost(held=active.claimed_ids())
        if freed:
            extra = {"action": "requeue", "count": len(freed), "decisions": ", ".join(freed[:5])}
            log.warning("a process ended with decisions under way; they are queued again", extra=extra)
        if claims is context.queue:
            context.notifier.request_answers(freed)
