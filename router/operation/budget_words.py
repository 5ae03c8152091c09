"""Sentences about dollar budgets: the spent share, and the effect of a budget on the price."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from sqlalchemy import select

from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.config.server import TenantSettings
from ragbandit.router.operation.budgets import DollarBudget, budget_states, period_bounds
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.storage.access.spending import Spent
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.texts.formats import number, percent

#: maximum number of decisions, newest first, that are read to describe the effect of a raised price
NEWEST: Final = 1_000


def state_in_words(budget: DollarBudget, spent: Spent, *, now: float) -> str:
    begin, end = period_bounds(budget.period, now=now)
    spent_share, elapsed = percent(budget.spent_of(spent) / budget.dollars), percent((now - begin) / (end - begin))
    period = budget.period
    dollars = f"{number(budget.dollars)} dollars of the {period} (UTC)"
    return f"{budget.spender_words} has spent {spent_share} of its {dollars}; {elapsed} of the {period} is over"


def budget_lines(
    database: Database, *, tenants: Mapping[str, TenantSettings], policy: PolicySettings, now: float
) -> list[str]:
    lines = []
    for budget, sums in budget_states(database, tenants=tenants, now=now):
        raised = raised_in_words(budget, sums, database=database, policy=policy, now=now)
        lines.append("; ".join(filter(None, (state_in_words(budget, sums, now=now), raised))))
    return lines


def raised_in_words(
    budget: DollarBudget, spent: Spent, *, database: Database, policy: PolicySettings, now: float, above: float = 1.0
) -> str:
    """A budget's effect on the price now; "" if the factor is at most `above`, or the policy serves no prices."""
    factor = budget.factor(spent, now=now)
    if factor <= above or not serves_prices(make_policy(policy.name, params=policy.params)):
        return ""
    is_key, column = budget.spender.kind == "key", decisions.c
    newest = select(column.arm, column.api_key if is_key else column.tenant).where(column.made_at > now - 3600.0)
    with database.read() as connection:
        rows = connection.execute(newest.order_by(column.made_at.desc()).limit(NEWEST)).all()
    answered = Counter(arm for arm, spender in rows if spender == budget.spender.name)
    sentence = f"the budget of {budget.spender_words} raises the price {number(factor)}-fold now"
    for arm, count in answered.most_common(1):
        sentence += f"; {arm} answers {percent(round(count / answered.total(), 2))} of its questions"
    return sentence
