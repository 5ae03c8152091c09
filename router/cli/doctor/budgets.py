"""Check of the dollar budgets: what of them is spent, and whether the price can pace them."""

from collections.abc import Sequence
from typing import Final

from ragbandit.router.api.limiting.budgets import bounds, budget_states, state_in_words
from ragbandit.router.cli.doctor.database import opened
from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, warning
from ragbandit.router.learning.monitoring.price import budget_warnings
from ragbandit.shared.formats import moment

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
