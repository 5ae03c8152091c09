"""The chore that carries out requests for bought verdicts, which came over HTTP or from the dashboard."""

from ragbandit.router.reporting.verdict_requests import newest_request
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context


class BoughtVerdicts(Chore):
    """Carries out requests for paired comparisons."""

    title = "ask paired questions"
    every_s = 3.0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        failing = "cannot ask the questions of a paired comparison; trying again. Check the database"
        self.outage = StoreOutage(action="decide", failing=failing, restored="paired comparisons go on")

    def do(self) -> None:
        context = self.context
        with context.store.database.read() as connection:
            if not newest_request(connection, label=context.ledger.label).is_open:
                return
        from ragbandit.workers.pairs.requested import carry_out  # it takes 40 MB

        carry_out(context.settings, ledger=context.ledger, ending=context.ending)
