"""Prices: the weight of cost that a question is served at, out of what its caller wants and what the settings say."""

from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.base import Policy, serves_prices
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import MAX_WEIGHT, Query

#: the key of a query's `request` with the factor (>= 1) that its caller's budgets put on its weight of cost
BUDGET_FACTOR: Final = "budget_factor"


def budget_factor(query: Query) -> float:
    """The factor (>= 1) that budgets put on the weight of cost; 1 without."""
    factor = query.request.get(BUDGET_FACTOR)
    return float(factor) if isinstance(factor, int | float) else 1.0


def served_weight(query: Query, *, settings: Settings, policy: Policy) -> float | None:
    """The weight of cost of a checked query (>= 0); None: that of the reward setting, as the policy learned it.

    Raises InvalidInput where it wants one of its own and the policy has one for all questions.
    """
    wanted, factor = query.cost_weight, budget_factor(query)
    if wanted is None and (factor == 1.0 or not serves_prices(policy)):
        return None
    if not serves_prices(policy):
        raise InvalidInput(
            f"the policy {policy.algorithm} has one weight of cost for all questions",
            field="cost_weight",
            remedy="leave cost_weight out, or set policy.name to one that keeps quality and cost apart, such as mba",
        )
    usual = settings.reward.weight
    weight = usual if wanted is None else settings.prices[wanted] if isinstance(wanted, str) else float(wanted)
    return min(weight + (factor - 1.0) * max(weight, usual), MAX_WEIGHT)  # below the usual one it rises as that
