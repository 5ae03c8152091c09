"""Carries out requests for paired comparisons that came over HTTP or from the dashboard, see `paired_requests`."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import no_progress
from ragbandit.router.reporting.paired_requests import PairedRequest, keep_request, note_wait, request_of
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import NotReady, QueueError, RagBanditError, StoreError
from ragbandit.workers.pairs.decision import STOPPED
from ragbandit.workers.pairs.setup import alone, prepared

log = logging.getLogger("ragbandit.worker")


def carry_out(settings: Settings, *, ledger: Ledger, ending: threading.Event) -> None:
    """Carry out the open request, if there is one and no other process asks. Raises StoreError.

    A request whose arms, judge or period cannot be used is refused with the reason. ending: set when this process ends;
    the next process then goes on.
    """
    if not _newest(ledger).is_open:
        return
    try:
        with alone(ledger.database):
            request = _newest(ledger)  # the last holder of the lease may have changed it
            if request.is_open:
                request = keep_request(ledger.database, request, label=ledger.label)  # the news that a learner begins
                _ask(request, settings=settings, ledger=ledger, is_stopping=ending.is_set)
    except NotReady as error:
        log.info("the paired comparison waits", extra={"action": "decide", "reason": str(error)})
        note_wait(ledger.database, label=ledger.label)


def _newest(ledger: Ledger) -> PairedRequest:
    with ledger.database.read() as connection:
        return request_of(connection, label=ledger.label)


def _ask(request: PairedRequest, *, settings: Settings, ledger: Ledger, is_stopping: Callable[[], bool]) -> None:
    scope = ReportScope(
        label=ledger.label,
        since=request.since,
        until=request.until,
        tenant=request.tenant,
        reward=settings.reward,
        rules=settings.rule_book,
    )
    try:
        against = report(ledger.database, scope, policy=settings.policy, against=request.against, now=time.time())
        who = {"actor": request.actor, "charged": request.charged}
        decision = prepared(ledger, scope, settings=settings, against=against, pipelines={}, judge=request.judge, **who)
    except (StoreError, QueueError):
        raise
    except RagBanditError as error:
        why = f"{error.message}{f' ({error.remedy})' if error.remedy else ''}"
        keep_request(ledger.database, replace(request, state="refused", ended=why), label=ledger.label)
        return
    except Exception as error:  # else it would be prepared again for ever
        keep_request(ledger.database, replace(request, state="ended", ended=f"failed: {error}"), label=ledger.label)
        raise
    known, lock = request, threading.Lock()
    try:
        plan = decision.plan(budget=request.budget)
        known = replace(request, plan=tuple(plan.sentences), against=plan.against)
        known = replace(known, state="planned" if request.budget is None else "running")
        keep_request(ledger.database, known, label=ledger.label)
        if request.budget is None:
            return
        before = request.dollars

        def paid(dollars: float) -> None:
            nonlocal known
            with lock:  # answers end at the same time, in threads
                dollars, asked = max(known.dollars, before + dollars), request.asked + decision.asked
                known = replace(known, dollars=dollars, asked=asked)
                keep_request(ledger.database, known, label=ledger.label)

        left = max(0.0, request.budget - before)
        done = decision.run(budget=left, progress=no_progress, warn=log.warning, on_paid=paid, is_stopping=is_stopping)
        known = replace(known, plan=tuple(decision.plan(budget=None).sentences))  # what is left to ask
    except (StoreError, QueueError):
        raise
    except Exception as error:  # else it would be asked again for ever
        keep_request(ledger.database, replace(known, state="ended", ended=f"failed: {error}"), label=ledger.label)
        raise
    finally:
        decision.close()
    asked, dollars = request.asked + done["asked"], before + done["dollars"]
    known = replace(known, asked=asked, dollars=dollars, ended=done["ended"])
    known = known if done["ended"] == STOPPED else replace(known, state="ended")
    keep_request(ledger.database, known, label=ledger.label)
