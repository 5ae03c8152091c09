"""The chore that asks the golden questions, see `learning.golden`."""

from collections.abc import Iterable

from ragbandit.additions.golden.settings import GoldenSection
from ragbandit.router.storage.sql.leases import lease_holder
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context


class GoldenQuestions(Chore):
    title = "ask the golden questions"
    every_s = 60.0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._holder = lease_holder("golden")
        failing = "cannot ask the golden questions; trying again. Check learning.golden, the arms and the database"
        self.outage = StoreOutage(action="golden", failing=failing, restored="the golden questions are asked again")

    @classmethod
    def of(cls, context: Context) -> "Iterable[GoldenQuestions]":
        return [] if context.settings.learning.of(GoldenSection).golden is None else [cls(context)]

    def do(self) -> None:
        from ragbandit.additions.golden.run import ask_golden  # this import takes 40 MB

        context = self.context
        ask_golden(context.settings, ledger=context.ledger, holder=self._holder, clock=context.deadlines.now)
