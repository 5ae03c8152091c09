"""Dollar budgets of tenants and keys, by day and by month (UTC): spending is paced by the price, and can be stopped.

A question's weight of cost is raised by a factor that depends on how far the budget is ahead of the clock. With f the
share of the budget that is spent, t the share of the period that is over and b = BURST + (1 - BURST) t the share that
may be spent by now, ahead = (f - b) / (1 - t + LATE) is the part of the remaining time for which no money is left, and

    factor = MOST ** min(1, ahead / FULL)  if ahead > 0,  else 1.

If the questions want more than the budget, `ahead` settles at the price at which they cost what is left per time: as
1 - t shrinks, f ends at 1 (proportional control of the logarithm of the price; for the price as the dual variable of a
budget: Balseiro and Gur 2019, "Learning in repeated auctions with budgets"). Spent dollars are read from SQL
(`storage.access.spending`), where they stand with the outcomes: a question counts once its outcome is there.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from sqlalchemy import select

from ragbandit.router.config.settings import Settings, TenantSettings
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.serving.deciding.prices import BUDGET_FACTOR
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.spending import Spender, Spent, spent
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.formats import moment, number, percent
from ragbandit.shared.types import Caller, Json, Query

if TYPE_CHECKING:  # it imports FastAPI, and `validate` works without
    from ragbandit.router.api.dependencies import Reads

log = logging.getLogger("ragbandit.api")

Period = Literal["day", "month"]

#: largest factor: at it the cheapest arm has all but the floors
MOST: Final = 1000.0
#: share of a budget that may be spent at any time: below it nothing is paced
BURST: Final = 0.1
#: part of the remaining time without money at which the factor is MOST
FULL: Final = 0.1
#: share of the period at its end in which a budget is not held more closely
LATE: Final = 0.01
#: for how long a process uses what it has read, seconds
FRESH_S: Final = 2.0
#: spenders that a process remembers; all are forgotten beyond
MOST_SPENDERS: Final = 10_000
#: newest decisions that are read for the sentence about a raised price
NEWEST: Final = 1_000
#: from one warning that a budget is spent to the next, seconds
_QUIET_S: Final = 600.0


class BudgetSpent(TooManyRequests):
    """This tenant or key has spent its budget."""


@dataclass(frozen=True, slots=True)
class DollarBudget:
    """A budget that holds for a question."""

    spender: Spender
    period: Period
    dollars: float
    #: refuse what is beyond
    stop: bool
    #: the setting or the scope of the budget
    setting: str

    def spent_of(self, sums: Spent) -> float:
        """The part of the spender's sums that is in the period, dollars."""
        return sums.day if self.period == "day" else sums.month

    def factor(self, sums: Spent, *, now: float) -> float:
        """The factor on the weight of cost."""
        begin, end = bounds(self.period, now=now)
        return price_factor(spent=self.spent_of(sums) / self.dollars, elapsed=(now - begin) / (end - begin))


def price_factor(*, spent: float, elapsed: float) -> float:
    """The factor on the weight of cost, in [1, MOST]. spent, elapsed: shares of the budget (>= 0) and of the period."""
    if spent >= 1.0:
        return MOST
    ahead = (spent - BURST - (1.0 - BURST) * elapsed) / (1.0 - elapsed + LATE)
    return float(f"{MOST ** min(1.0, max(0.0, ahead / FULL)):.4g}")  # it stands in every row


def bounds(period: Period, *, now: float) -> tuple[float, float]:
    """Begin and end of the day or month (UTC) of a time, seconds since the epoch."""
    begin = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return begin.timestamp(), (begin + timedelta(days=1)).timestamp()
    begin = begin.replace(day=1)
    return begin.timestamp(), (begin + timedelta(days=32)).replace(day=1).timestamp()


def budgets_of(
    tenant: str, *, key: str | None, scopes: Mapping[str, Json], tenants: Mapping[str, TenantSettings]
) -> tuple[DollarBudget, ...]:
    """The budgets of a question of this tenant that comes with this key; none where nothing bounds it."""
    if not tenants and not scopes:
        return ()
    name = tenant if tenant in tenants else "default"
    given, budgets = tenants.get(name) or TenantSettings(), []
    for period, field in _FIELDS.items():
        own, scope = getattr(given, field), scopes.get(field)
        if own is not None:
            spender, setting = Spender("tenant", tenant), f"the setting tenants.{name}.{field}"
            budgets.append(DollarBudget(spender, period, own, stop=given.budget_stop, setting=setting))
        if isinstance(scope, int | float):
            stop, setting = bool(scopes.get("budget_stop", given.budget_stop)), f"the scope {field} of the key"
            budgets.append(DollarBudget(Spender("key", key or ""), period, float(scope), stop=stop, setting=setting))
    return tuple(budgets)


_FIELDS: Final[Mapping[Period, str]] = {"day": "dollars_per_day", "month": "dollars_per_month"}


class Budgets:
    """The budgets of one process, on one event loop.

    With a policy that has no price for each question they can only stop.
    """

    def __init__(self, router: Router, *, reads: "Reads") -> None:
        self._router, self._reads, self._clock = router, reads, time.time
        self._lock = asyncio.Lock()
        #: what was read, and when by time.monotonic: a clock that is set back keeps no sum alive
        self._known: dict[Spender, tuple[Spent, float]] = {}
        self._throttle = Throttle(_QUIET_S)

    async def paced(self, query: Query, *, caller: Caller) -> Query:
        """The query with the factor on its weight of cost, where it is above 1. Raises BudgetSpent, StoreError."""
        tenants = self._router.settings.tenants
        held = budgets_of(query.tenant, key=caller.key, scopes=caller.scopes, tenants=tenants)
        if not held:
            return query
        now, paces = self._clock(), serves_prices(self._router.service.serving.policy)
        sums = await self._spent({one.spender for one in held}, now=now)
        beyond = _beyond(held, sums)
        if stopping := [one for one in beyond if one.stop or not paces]:
            raise refusal(max(stopping, key=lambda one: bounds(one.period, now=now)[1]), now=now)
        for one in beyond:
            if self._throttle.lets_pass((one.spender.kind, one.period)):
                facts = {"action": "budget", one.spender.kind: one.spender.name, "period": one.period}
                log.warning("a dollar budget is spent: questions continue at the highest price", extra=facts)
        factor = max(one.factor(sums[one.spender], now=now) for one in held) if paces else 1.0
        return query if factor == 1.0 else replace(query, request={**query.request, BUDGET_FACTOR: factor})

    async def _spent(self, spenders: Iterable[Spender], *, now: float) -> dict[Spender, Spent]:
        if any(self._is_stale(one) for one in spenders):
            async with self._lock:  # requests that come meanwhile wait for one read
                if stale := [one for one in spenders if self._is_stale(one)]:
                    if len(self._known) > MOST_SPENDERS:
                        self._known, stale = {}, list(spenders)
                    for one, sums in (await self._reads.run(lambda: self._sums(stale, now=now))).items():
                        self._known[one] = sums, time.monotonic()
        return {one: self._known[one][0] for one in spenders}

    def _is_stale(self, spender: Spender) -> bool:
        known = self._known.get(spender)
        return known is None or time.monotonic() - known[1] >= FRESH_S

    def _sums(self, spenders: list[Spender], *, now: float) -> Mapping[Spender, Spent]:
        with self._router.database.read() as connection:
            return spent(connection, spenders, now=now)


def _beyond(held: Iterable[DollarBudget], sums: Mapping[Spender, Spent]) -> list[DollarBudget]:
    """Those of the budgets that are spent."""
    return [one for one in held if one.spent_of(sums[one.spender]) >= one.dollars]


def stopped_until(query: Query, *, settings: Settings, database: Database, now: float) -> float | None:
    """When the last spent budget that stops this stored question's spenders begins again; None if money may be spent.

    For what workers spend in addition to the answer. Raises StoreError.
    """
    scopes = {} if query.api_key is None else KeyStore(database).scopes(query.api_key)
    budgets = budgets_of(query.tenant, key=query.api_key, scopes=scopes, tenants=settings.tenants)
    held = [one for one in budgets if one.stop]
    if not held:
        return None
    with database.read() as connection:
        sums = spent(connection, list({one.spender for one in held}), now=now)
    return max((bounds(one.period, now=now)[1] for one in _beyond(held, sums)), default=None)


def budget_states(database: Database, *, settings: Settings, now: float) -> Iterator[tuple[DollarBudget, Spent]]:
    """Every budget that is known by name, with what its spender has spent. Raises StoreError."""
    keys = [key for key in KeyStore(database).listed() if key.state(now) in ("active", "expiring")]
    tenants = {"default", *settings.tenants, *(key.tenant for key in keys if key.tenant is not None)}
    held = {
        budget: None
        for tenant, key, scopes in [
            *((tenant, None, {}) for tenant in sorted(tenants)),
            *((key.tenant or "default", key.public_id, key.scopes) for key in keys),
        ]
        for budget in budgets_of(tenant, key=key, scopes=scopes, tenants=settings.tenants)
    }
    with database.read() as connection:
        sums = spent(connection, list({one.spender for one in held}), now=now) if held else {}
    for budget in held:
        yield budget, sums[budget.spender]


def state_in_words(budget: DollarBudget, sums: Spent, *, now: float) -> str:
    """The shares of a budget that is spent, and of its period that is over."""
    begin, end = bounds(budget.period, now=now)
    share, over = percent(budget.spent_of(sums) / budget.dollars), percent((now - begin) / (end - begin))
    who, whole = f"{budget.spender.kind} {budget.spender.name}", f"{number(budget.dollars)} dollars"
    return f"{who} has spent {share} of its {whole} of the {budget.period} (UTC); {over} of the {budget.period} is over"


def budget_lines(database: Database, settings: Settings, *, now: float) -> list[str]:
    """The state of every budget, each followed by what it does to the choices now, as sentences."""
    lines = []
    for budget, sums in budget_states(database, settings=settings, now=now):
        raised = raised_in_words(budget, sums, database=database, settings=settings, now=now)
        lines.append("; ".join(filter(None, (state_in_words(budget, sums, now=now), raised))))
    return lines


def raised_in_words(
    budget: DollarBudget, sums: Spent, *, database: Database, settings: Settings, now: float, least: float = 1.0
) -> str:
    """What the budget does to the choices now, as a sentence; "" unless its factor is above `least`."""
    factor = budget.factor(sums, now=now)
    if factor <= least or not serves_prices(make_policy(settings.policy.name, params=settings.policy.params)):
        return ""
    is_key, column = budget.spender.kind == "key", decisions.c
    newest = select(column.arm, column.api_key if is_key else column.tenant).where(column.made_at > now - 3600.0)
    with database.read() as connection:
        rows = connection.execute(newest.order_by(column.made_at.desc()).limit(NEWEST)).all()
    answered = Counter(arm for arm, spender in rows if spender == budget.spender.name)
    words = f"the budget of {'the key ' * is_key}{budget.spender.name} raises the price {number(factor)}-fold now"
    for arm, count in answered.most_common(1):
        words += f"; {arm} answers {percent(round(count / answered.total(), 2))} of its questions"
    return words


def refusal(budget: DollarBudget, *, now: float) -> BudgetSpent:
    """What a caller gets beyond its budget."""
    _, end = bounds(budget.period, now=now)
    who = f"the tenant {budget.spender.name!r}" if budget.spender.kind == "tenant" else "this key"
    return BudgetSpent(
        f"{who} has spent its {budget.dollars:g} dollars of the {budget.period} (UTC), which ends at {moment(end)}",
        field="tenant" if budget.spender.kind == "tenant" else None,
        remedy=f"wait until then, or have {budget.setting} raised",
        retry_after_s=end - now,
    )
