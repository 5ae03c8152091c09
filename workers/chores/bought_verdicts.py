"""The chore that carries out requests for bought verdicts, which came over HTTP or from the dashboard."""

import contextlib
import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from ragbandit.router.reporting.verdict_requests import State, VerdictRequest, keep_request, newest_request, note_wait
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.shared.errors import NotReady, QueueError, RagBanditError, StoreError
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context

if TYPE_CHECKING:  # the module takes 40 MB, and most processes never buy a verdict
    from ragbandit.workers.pairs.bought_verdict import BoughtVerdict

log = logging.getLogger("ragbandit.worker")


class BoughtVerdicts(Chore):
    title = "ask paired questions"
    every_s = 3.0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        failing = "cannot ask the questions of a paired comparison; trying again. Check the database"
        self.outage = StoreOutage(action="decide", failing=failing, restored="paired comparisons go on")

    def do(self) -> None:
        carry_out_request(self.context)


def carry_out_request(context: Context) -> None:
    """Carry out the open request, if there is one and no other process asks. Raises StoreError.

    A request whose arms, judge or period cannot be used is refused with the reason. If this process ends, the next one
    goes on.
    """
    ledger = context.ledger
    if not _newest_request(ledger).is_open:
        return
    from ragbandit.workers.pairs.setup import asking_lease  # the module takes 40 MB

    try:
        with asking_lease(ledger.database):
            request = _newest_request(ledger)  # the last holder of the lease may have changed the request
            if request.is_open:
                _OpenRequest(request, context=context).carry_out()
    except NotReady as error:
        log.info("the paired comparison waits", extra={"action": "decide", "reason": str(error)})
        note_wait(ledger.database, label=ledger.label)


def _newest_request(ledger: Ledger) -> VerdictRequest:
    with ledger.database.read() as connection:
        return newest_request(connection, label=ledger.label)


class _OpenRequest:
    """An open request, whose changes are stored at once."""

    def __init__(self, request: VerdictRequest, *, context: Context) -> None:
        self._request, self._context, self._ledger = request, context, context.ledger
        self._lock = threading.RLock()  # answers end at the same time, in threads

    def _store(self, request: VerdictRequest) -> None:
        with self._lock:
            self._request = request
            keep_request(self._ledger.database, request, label=self._ledger.label)

    def carry_out(self) -> None:
        self._store(self._request)  # else the request would end as one without a learner
        verdict = None
        try:
            verdict = self._prepare_verdict()
            with contextlib.closing(verdict):
                self._buy(verdict)
        except (StoreError, QueueError):
            raise
        except Exception as error:  # an open request would be prepared and asked again for ever
            if verdict is None and isinstance(error, RagBanditError):
                why = f"{error.message}{f' ({error.remedy})' if error.remedy else ''}"
                self._store(replace(self._request, state="refused", ended=why))
                return
            self._store(replace(self._request, state="ended", ended=f"failed: {error}"))
            raise

    def _prepare_verdict(self) -> "BoughtVerdict":
        from ragbandit.router.reporting.reading import ReportScope
        from ragbandit.workers.pairs.setup import prepare_verdict

        request, settings = self._request, self._context.settings
        period = {"since": request.since, "until": request.until}
        scope = ReportScope.of(settings, label=self._ledger.label, tenant=request.tenant, **period)
        return prepare_verdict(
            self._ledger,
            scope,
            settings=settings,
            against=request.against,
            judge=request.judge,
            actor=request.actor,
            charged=request.charged,
        )

    def _buy(self, verdict: "BoughtVerdict") -> None:
        from ragbandit.router.offline.estimation import no_progress
        from ragbandit.workers.pairs.bought_verdict import STOPPED

        before, plan = self._request, tuple(verdict.plan(budget=self._request.budget))
        state: State = "planned" if before.budget is None else "running"
        self._store(replace(before, plan=plan, against=verdict.compared.against, state=state))
        if before.budget is None:
            return

        def note_payment(dollars: float) -> None:
            with self._lock:
                total, asked = max(self._request.dollars, before.dollars + dollars), before.asked + verdict.asked_now
                self._store(replace(self._request, dollars=total, asked=asked))

        left = max(0.0, before.budget - before.dollars)
        ended = verdict.run(
            budget=left,
            progress=no_progress,
            warn=log.warning,
            on_paid=note_payment,
            is_stopping=self._context.ending.is_set,
        )
        self._store(
            replace(
                self._request,
                state="running" if ended == STOPPED else "ended",
                plan=tuple(verdict.plan(budget=None)),  # the plan of the questions that are left
                asked=before.asked + verdict.asked_now,
                dollars=before.dollars + verdict.spent,
                ended=ended,
            )
        )
