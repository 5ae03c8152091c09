"""Budgets and limits of a question in the HTTP service: its price factor, its limits, and reservations for calls."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

from ragbandit.router.config.sections import ConversationSettings
from ragbandit.router.operation.budgets import BudgetSpent, budgets_of, exhausted, raise_if_spent, spending_of
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.serving.deciding.steps.turn_limits import limits_of, with_amounts_used
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.access.reservations import Reservation, no_reservation, reserve
from ragbandit.router.storage.access.spending import Spender, Spent, spenders_of
from ragbandit.router.storage.access.turn_sums import refusal_of
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.sql.bulk_insert import run_statement
from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.types import Caller, DecisionId, Query, SpendLimit

log = logging.getLogger("ragbandit.api")

#: time for which a process uses the sums of spending that it has read, seconds
FRESH_S: Final = 2.0
#: maximum number of spenders whose sums a process caches; if there are more, the cache is emptied
MOST_SPENDERS: Final = 10_000
#: shortest time between two warnings that a budget is spent, seconds
_QUIET_S: Final = 600.0

Value = TypeVar("Value")


class ReadThreads(Protocol):
    """Threads that read a database for an event loop."""

    async def run(self, work: Callable[[], Value]) -> Value:
        """Call `work` on a thread. Raises Overloaded and NotReady."""


class Budgets:
    """The budgets of one process and event loop."""

    def __init__(self, router: Router, *, reads: ReadThreads) -> None:
        self._router, self._reads = router, reads
        self._clock: Callable[[], float] = lambda: router.service.clock()
        self._lock = asyncio.Lock()
        #: spender -> (sums, time.monotonic() after they were read)
        self._cached: dict[Spender, tuple[Spent, float]] = {}
        self._throttle = Throttle(_QUIET_S)

    @property
    def _can_raise_price(self) -> bool:
        """Whether a budget can raise the price of the policy."""
        return serves_prices(self._router.service.serving.policy)

    async def apply(self, query: Query, *, caller: Caller, is_preview: bool = False) -> Query:
        """Add to a query the price factor of budgets, their limits, and the limits of its task and session.

        Raises StoreError and LimitReached. Raises BudgetSpent if a spent budget stops questions or cannot raise the
        policy's price. The query's task then ends, unless this is a preview.
        """
        settings = self._router.settings.conversation
        if settings.limited:
            check = partial(_limits_of, query, settings=settings, store=self._router.store, now=self._clock())
            query = replace(query, limits=tuple(await self._reads.run(check)))
        tenants = self._router.settings.tenants
        if not (tenants or caller.scopes):
            return query
        budgets = budgets_of(query.tenant, key=caller.key, scopes=caller.scopes, tenants=tenants)
        if not budgets:
            return query
        now, can_raise = self._clock(), self._can_raise_price
        sums = await self._spent({budget.spender for budget in budgets}, now=now)
        spent_budgets = exhausted(budgets, sums)
        try:
            raise_if_spent([budget for budget in spent_budgets if budget.stop or not can_raise], now=now)
        except BudgetSpent:
            if not is_preview and self._router.settings.conversation.is_task(query.unit, door=query.sent.surface):
                await asyncio.to_thread(self._router.store.stop_task, query, now=now)
            raise
        for budget in spent_budgets:
            if self._throttle.lets_pass((budget.spender.kind, budget.period)):
                extra = {"action": "budget", budget.spender.kind: budget.spender.name, "period": budget.period}
                log.warning("a dollar budget is spent: questions continue at the highest price", extra=extra)
        limits = tuple(budget.limit(now=now) for budget in budgets if budget.stop or not can_raise)
        factor = max(budget.factor(sums[budget.spender], now=now) for budget in budgets) if can_raise else 1.0
        return replace(query, terms=replace(query.terms, budget_factor=factor), limits=(*limits, *query.limits))

    async def reserve(self, tenant: str, *, caller: Caller, dollars: float) -> Reservation:
        """Count the estimated cost of a call before it is made. Raises StoreError, and BudgetSpent as `apply` does."""
        tenants, now = self._router.settings.tenants, self._clock()
        budgets = budgets_of(tenant, key=caller.key, scopes=caller.scopes, tenants=tenants)
        stopping = [budget for budget in budgets if budget.stop or not self._can_raise_price]

        def check(spending: Mapping[Spender, Spent]) -> None:
            raise_if_spent(exhausted(stopping, spending), now=now)

        spenders = spenders_of(tenant, key=caller.key)
        if not stopping and not dollars:
            return no_reservation(spenders, at=now)
        work = partial(reserve, self._router.database, spenders, dollars=dollars, now=now, check=check)
        return await asyncio.to_thread(work)

    async def _spent(self, spenders: Iterable[Spender], *, now: float) -> dict[Spender, Spent]:
        if any(self._is_stale(spender) for spender in spenders):
            async with self._lock:  # one request reads, and concurrent ones use its sums
                stale = [spender for spender in spenders if self._is_stale(spender)]
                if stale:
                    if len(self._cached) > MOST_SPENDERS:
                        self._cached, stale = {}, list(spenders)
                    read = partial(spending_of, self._router.database, stale, now=now)
                    for spender, sums in (await self._reads.run(read)).items():
                        self._cached[spender] = sums, time.monotonic()
        return {spender: self._cached[spender][0] for spender in spenders}

    def _is_stale(self, spender: Spender) -> bool:
        cached = self._cached.get(spender)
        return cached is None or time.monotonic() - cached[1] >= FRESH_S


def _limits_of(query: Query, *, settings: ConversationSettings, store: DecisionStore, now: float) -> list[SpendLimit]:
    """The limits of a question's task and session; [] if one is reached, but the question is a repeated request.

    Raises StoreError. Raises LimitReached if a limit is reached, and the limit refuses questions or the caller named
    the arm.
    """
    first = _open_task(query, settings=settings, store=store, now=now)
    with store.database.read() as connection:
        (limits,) = with_amounts_used(connection, [limits_of(query, first=first, settings=settings)])
        reached = next((limit for limit in limits if limit.is_reached), None)
        if reached is None or reached.moves:
            return limits
        if query.id is not None and run_statement(connection, "SELECT id FROM decisions WHERE id = ?", query.id):
            return []
    raise refusal_of(reached, limits=limits)


def _open_task(query: Query, *, settings: ConversationSettings, store: DecisionStore, now: float) -> DecisionId | None:
    """The decision whose task the question continues; None if it begins a task."""
    if query.continues.loop is not None:
        return DecisionId(query.continues.loop.first)
    is_task = settings.is_task(query.unit, door=query.sent.surface)
    counts = is_task and query.arm_by is None and "task" in settings.limited
    return store.open_task(query, now=now) if counts else None
