"""Upkeep of the store: its hourly totals, and old decisions that leave it."""

from collections.abc import Iterable

from ragbandit.router.storage.retention import Retention
from ragbandit.router.storage.sql.leases import lease_holder
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context


class HourlyTotals(Chore):
    title = "extend the hourly totals"
    every_s = 5.0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        weight = context.settings.reward.weight
        self._extender = TotalsExtender(context.store.database, holder=lease_holder("totals"), weight=weight)

    def do(self) -> float:
        return 2.0 if self._extender.extend(seconds=2.0) else self.every_s

    def end(self) -> None:
        self._extender.release()


class OldDecisions(Chore):
    title = "let old decisions leave the store"
    every_s = 60.0

    def __init__(self, context: Context, *, days: float) -> None:
        super().__init__(context)
        clock = context.deadlines.for_deletion
        holder = lease_holder("retention")
        self._retention = Retention(context.store.database, holder=holder, days=days, clock=clock)

    @classmethod
    def of(cls, context: Context) -> "Iterable[OldDecisions]":
        days = context.settings.retention.days
        return [] if days is None else [cls(context, days=days)]

    def do(self) -> float | None:
        return self._retention.step()

    def end(self) -> None:
        self._retention.release()
