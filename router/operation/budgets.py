"""Dollar budgets of tenants and keys, by day and by month (UTC): they raise the price, and may refuse questions.

The price of a question, which is its weight of cost, is multiplied by a factor that grows as spending gets ahead of
the clock. `spent` is the share of the budget that is spent, and `elapsed` the share of the period that is over:

    allowed = BURST + (1 - BURST) * elapsed               share of the budget that may be spent by now
    ahead   = (spent - allowed) / (1 - elapsed + LATE)    part of the remaining time for which there is no money
    factor  = MOST_FACTOR ** min(1, ahead / FULL)  if ahead > 0,  else 1

If demand exceeds the budget, the price settles where the spending rate fits the rest of the budget, and `spent` ends
at 1. The price is the dual variable of the budget, and the factor controls its logarithm proportionally (Balseiro and
Gur 2019, "Learning in repeated auctions with budgets"). An answer counts by its estimate while it is queued or runs,
and by its cost when its outcome is stored. Budgets that refuse questions are checked again in the transaction that
stores the decision (storage/access/reservations.py), so that concurrent questions cannot exceed them together.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ragbandit.router.config.server import TenantSettings
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.spending import Spender, Spent, read_spending
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.texts.formats import moment
from ragbandit.shared.types import MOST_FACTOR, DecisionId, Json, Period, Query, SpendLimit

_FIELDS: Final[Mapping[Period, str]] = {"day": "dollars_per_day", "month": "dollars_per_month"}

#: share of a budget that may be spent at the start of a period without a higher price
BURST: Final = 0.1
#: smallest value of `ahead` at which the factor is MOST_FACTOR
FULL: Final = 0.1
#: share of a period, added to the remaining time, so that `ahead` stays finite at the end
LATE: Final = 0.01


class BudgetSpent(TooManyRequests):
    """This tenant or key has spent its budget."""


@dataclass(frozen=True, slots=True)
class DollarBudget:
    spender: Spender
    period: Period
    dollars: float
    #: whether questions are refused if the budget is spent
    stop: bool
    #: name of the setting, or of the key's scope, that sets the budget
    setting: str
    #: name of the key, for people; "" for a tenant
    key_name: str = ""

    @property
    def spender_words(self) -> str:
        return f"the {self.spender.kind} {self.key_name or self.spender.name}"

    def spent_of(self, spending: Spent) -> float:
        """Dollars of stored outcomes in the period, without estimates of queued and running answers (`Spent.of`)."""
        return spending.day if self.period == "day" else spending.month

    def limit(self, *, now: float) -> SpendLimit:
        refused = budget_refusal(self, now=now)
        name, kind = self.spender.name, self.spender.kind
        return SpendLimit(kind=kind, name=name, period=self.period, most=self.dollars, refusal=refused)

    def factor(self, spending: Spent, *, now: float) -> float:
        begin, end = period_bounds(self.period, now=now)
        return price_factor(spent=spending.of(self.period) / self.dollars, elapsed=(now - begin) / (end - begin))


def price_factor(*, spent: float, elapsed: float) -> float:
    """The factor on the price, in [1, MOST_FACTOR]. spent, elapsed: shares of the budget and of the period."""
    if spent >= 1.0:
        return MOST_FACTOR
    ahead = (spent - BURST - (1.0 - BURST) * elapsed) / (1.0 - elapsed + LATE)
    factor = MOST_FACTOR ** min(1.0, max(0.0, ahead / FULL))
    return float(f"{factor:.4g}")  # rounded, since every decision stores it


def period_bounds(period: Period, *, now: float) -> tuple[float, float]:
    """Beginning and end of the day or month (UTC) that contains `now`, in seconds since 1970."""
    begin = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return begin.timestamp(), (begin + timedelta(days=1)).timestamp()
    begin = begin.replace(day=1)
    return begin.timestamp(), (begin + timedelta(days=32)).replace(day=1).timestamp()


def budgets_of(
    tenant: str,
    *,
    key: str | None,
    scopes: Mapping[str, Json],
    tenants: Mapping[str, TenantSettings],
    key_name: str = "",
) -> tuple[DollarBudget, ...]:
    if not tenants and not scopes:
        return ()
    name = tenant if tenant in tenants else "default"
    settings, budgets = tenants.get(name) or TenantSettings(), []
    for period, field in _FIELDS.items():
        dollars, scope = getattr(settings, field), scopes.get(field)
        if dollars is not None:
            spender, setting = Spender("tenant", tenant), f"the setting tenants.{name}.{field}"
            budgets.append(DollarBudget(spender, period, dollars, stop=settings.budget_stop, setting=setting))
        if isinstance(scope, int | float):
            stop, setting = bool(scopes.get("budget_stop", settings.budget_stop)), f"the scope {field} of the key"
            by_key = DollarBudget(Spender("key", key or ""), period, float(scope), stop, setting, key_name)
            budgets.append(by_key)
    return tuple(budgets)


def spending_of(
    database: Database, spenders: Iterable[Spender], *, now: float, excluded: DecisionId | None = None
) -> Mapping[Spender, Spent]:
    """The sums of dollars of each spender. excluded: a decision whose estimate does not count. Raises StoreError."""
    with database.read() as connection:
        return read_spending(connection, list(set(spenders)), now=now, excluded=excluded)


def exhausted(budgets: Iterable[DollarBudget], spending: Mapping[Spender, Spent]) -> list[DollarBudget]:
    """The budgets that are spent. spending: spender -> its spending"""
    return [budget for budget in budgets if spending[budget.spender].of(budget.period) >= budget.dollars]


def raise_if_spent(budgets: Sequence[DollarBudget], *, now: float) -> None:
    """Raise BudgetSpent for the budget whose period ends last, if there are budgets. budgets: only spent ones"""
    if budgets:
        raise budget_refusal(max(budgets, key=lambda budget: period_bounds(budget.period, now=now)[1]), now=now)


def stopped_until(
    query: Query, *, tenants: Mapping[str, TenantSettings], database: Database, now: float
) -> float | None:
    """Time until which budgets forbid further spending on a stored question; None if it is allowed. Workers check this
    before they pay for a judge or for a second arm. The question's own estimate does not count. Raises StoreError.
    """
    scopes = {} if query.api_key is None else KeyStore(database).scopes(query.api_key)
    budgets = budgets_of(query.tenant, key=query.api_key, scopes=scopes, tenants=tenants)
    stopping = [budget for budget in budgets if budget.stop]
    if not stopping:
        return None
    own = None if query.id is None else DecisionId(query.id)
    sums = spending_of(database, (budget.spender for budget in stopping), now=now, excluded=own)
    return max((period_bounds(budget.period, now=now)[1] for budget in exhausted(stopping, sums)), default=None)


def check_budgets(spending: Mapping[Spender, Spent], *, key: str | None, database: Database) -> None:
    """Raise BudgetSpent if the key has a spent budget that stops questions. spending: of the key. key: its public id;
    None without a key.
    """
    now, scopes = time.time(), {} if key is None else KeyStore(database).scopes(key)
    stopping = [one for one in budgets_of("", key=key, scopes=scopes, tenants={}) if one.stop]
    raise_if_spent(exhausted(stopping, spending), now=now)


def budget_states(
    database: Database, *, tenants: Mapping[str, TenantSettings], now: float
) -> Iterator[tuple[DollarBudget, Spent]]:
    """Yields (budget, sums of spending) for the budgets of tenants and of valid keys. Raises StoreError."""
    keys = [key for key in KeyStore(database).list_keys() if key.state(now) == "active"]
    names = {"default", *tenants, *(key.tenant for key in keys if key.tenant is not None)}
    budgets: dict[DollarBudget, None] = {}  # used as an ordered set
    for tenant in sorted(names):
        budgets |= dict.fromkeys(budgets_of(tenant, key=None, scopes={}, tenants=tenants))
    for key in keys:
        tenant, scopes = key.tenant or "default", key.scopes
        own = budgets_of(tenant, key=key.public_id, scopes=scopes, tenants=tenants, key_name=key.name)
        budgets |= dict.fromkeys(own)
    sums = spending_of(database, (budget.spender for budget in budgets), now=now) if budgets else {}
    for budget in budgets:
        yield budget, sums[budget.spender]


def budget_refusal(budget: DollarBudget, *, now: float) -> BudgetSpent:
    _, end = period_bounds(budget.period, now=now)
    spender = f"the tenant {budget.spender.name!r}" if budget.spender.kind == "tenant" else "this key"
    return BudgetSpent(
        f"{spender} has spent its {budget.dollars:g} dollars of the {budget.period} (UTC), which ends at {moment(end)}",
        field="tenant" if budget.spender.kind == "tenant" else None,
        remedy=f"wait until then, or ask the operator to raise {budget.setting}",
        retry_after_s=end - now,
    )
