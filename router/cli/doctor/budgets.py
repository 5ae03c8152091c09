"""Check of the dollar budgets: what of them is spent, and whether the price can pace them."""

from collections.abc import Iterator, Sequence
from typing import Final

from ragbandit.router.api.limiting.budgets import DollarBudget, bounds, budgets_of
from ragbandit.router.cli.doctor.database import opened
from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, warning
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.price import budget_warnings
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.spending import Spent, spent
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.formats import moment, number, percent

_CHECK: Final = "dollar budgets"


def budgets(installation: Installation) -> Sequence[Finding]:
    """Each tenant of the settings or of a key, and each key that has a budget."""
    settings, now = installation.settings, installation.clock()
    with opened(settings) as database:
        states = list(budget_states(database, settings=settings, now=now))
    if not states:
        return [fine(_CHECK, "none is set")]
    findings = [
        warning(_CHECK, words, means="the price of a question decides less than it should", remedy="see docs/price.md")
        for words in budget_warnings(settings)
    ]
    for budget, sums in states:
        if budget.spent_of(sums) >= budget.dollars:
            end = moment(bounds(budget.period, now=now)[1])
            means = f"its questions {'are refused (429)' if budget.stop else 'go to the cheapest arm'} until {end}"
            remedy = f"wait, raise {budget.setting}, or see what it spends: ragbandit top"
            findings.append(warning(_CHECK, state_in_words(budget, sums, now=now), means=means, remedy=remedy))
    return findings or [fine(_CHECK, f"{len(states)}, none of them spent")]


def budget_states(database: Database, *, settings: Settings, now: float) -> Iterator[tuple[DollarBudget, Spent]]:
    """Every budget that is known by name, with what its spender has spent."""
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
    """What of a budget is spent, when so much of its period is over."""
    begin, end = bounds(budget.period, now=now)
    share, over = percent(budget.spent_of(sums) / budget.dollars), percent((now - begin) / (end - begin))
    who, whole = f"{budget.spender.kind} {budget.spender.name}", f"{number(budget.dollars)} dollars"
    return f"{who} has spent {share} of its {whole} of the {budget.period} (UTC); {over} of the {budget.period} is over"
