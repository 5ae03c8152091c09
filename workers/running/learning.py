"""Jobs of the queue `learn`: learn the decisions that are ready."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.learner import Learner
from ragbandit.router.storage.ledgers.inheritance import is_inheriting
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.telemetry.routines import retry_through_outage
from ragbandit.shared.errors import NotReady, SnapshotError, StoreError
from ragbandit.workers.running.context import Context

log = logging.getLogger("ragbandit.worker")

#: time for which a learner tries again while the store fails, seconds
LEARN_S: Final = 60.0


def next_learn(context: Context, woken: bool) -> Callable[[], int] | None:  # noqa: FBT001 - as Consumer.claim_next
    if woken:  # wait until 0.2 s after the last look, so that feedback of these 0.2 s is learned together
        context.ending.wait(context.looked_at + 0.2 - time.monotonic())
    context.looked_at = time.monotonic()
    return partial(learn, context) if woken or is_due(context, context.ledger) else None


def learn(context: Context) -> int:
    """Learn what is ready, trying for LEARN_S if the store fails. Returns as `Learner.drain`, or 0 after a failure."""
    assert context.learner is not None
    context.wake_versions()
    work = partial(drain, context, context.learner, patience_s=context.settings.learning.lease_s + 1)
    try:
        return retry_through_outage(work, seconds=LEARN_S, ending=context.ending)
    except NotReady as error:
        log.info("nothing can be learned yet", extra={"action": "learn", "reason": str(error)})
    except (StoreError, SnapshotError):  # logged once per outage
        pass
    return 0


def drain(context: Context, learner: Learner, *, patience_s: float = 0.0) -> int:
    """Call `Learner.drain`. A failure of the store is logged once per outage, and raised again."""
    try:
        done = learner.drain(patience_s=patience_s)
    except (StoreError, SnapshotError) as error:
        context.learning_outage.note_failure(error)
        raise
    context.learning_outage.note_success()
    return done


def is_due(context: Context, ledger: Ledger) -> bool:
    """Whether a decision of the ledger can be learned or closed now."""
    rule = closing_rule(context.settings.learning)
    return bool(is_inheriting(ledger) or ledger.ready(rule, now=ledger.database.clock.now(), limit=1))
