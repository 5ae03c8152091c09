"""Carries out requests for bought verdicts that came over HTTP or from the dashboard, see `verdict_requests`."""

import contextlib
import logging
import threading
from dataclasses import replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import no_progress
from ragbandit.router.reporting.verdict_requests import State, VerdictRequest, keep_request, newest_request, note_wait
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import NotReady, QueueError, RagBanditError, StoreError
from ragbandit.workers.pairs.bought_verdict import STOPPED, BoughtVerdict
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
                _Order(request, settings=settings, ledger=ledger).carry_out(ending=ending)
    except NotReady as error:
        log.info("the paired comparison waits", extra={"action": "decide", "reason": str(error)})
        note_wait(ledger.database, label=ledger.label)


def _newest(ledger: Ledger) -> VerdictRequest:
    with ledger.database.read() as connection:
        return newest_request(connection, label=ledger.label)


class _Order:
    """An open request, whose changes are stored at once."""

    def __init__(self, request: VerdictRequest, *, settings: Settings, ledger: Ledger) -> None:
        self._request, self._settings, self._ledger = request, settings, ledger
        self._lock = threading.RLock()  # answers end at the same time, in threads

    def _keep(self, request: VerdictRequest) -> None:
        with self._lock:
            self._request = request
            keep_request(self._ledger.database, request, label=self._ledger.label)

    def carry_out(self, *, ending: threading.Event) -> None:
        self._keep(self._request)  # the news that a learner begins
        verdict = None
        try:
            verdict = prepared(self._ledger, self._request, settings=self._settings)
            with contextlib.closing(verdict):
                self._buy(verdict, ending=ending)
        except (StoreError, QueueError):
            raise
        except Exception as error:  # else it would be prepared and asked again for ever
            if verdict is None and isinstance(error, RagBanditError):
                why = f"{error.message}{f' ({error.remedy})' if error.remedy else ''}"
                self._keep(replace(self._request, state="refused", ended=why))
                return
            self._keep(replace(self._request, state="ended", ended=f"failed: {error}"))
            raise

    def _buy(self, verdict: BoughtVerdict, *, ending: threading.Event) -> None:
        before, plan = self._request, tuple(verdict.plan(budget=self._request.budget))
        state: State = "planned" if before.budget is None else "running"
        self._keep(replace(before, plan=plan, against=verdict.compared.against, state=state))
        if before.budget is None:
            return

        def paid(dollars: float) -> None:
            with self._lock:
                total, asked = max(self._request.dollars, before.dollars + dollars), before.asked + verdict.asked_now
                self._keep(replace(self._request, dollars=total, asked=asked))

        left = max(0.0, before.budget - before.dollars)
        done = verdict.run(budget=left, progress=no_progress, warn=log.warning, on_paid=paid, is_stopping=ending.is_set)
        plan = tuple(verdict.plan(budget=None))  # what is left to ask
        state = "running" if done.ended == STOPPED else "ended"
        self._keep(replace(done, plan=plan, against=verdict.compared.against, state=state))
