"""Prices: the weight of cost that a question is served at, out of what its caller wants and what the settings say."""

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.base import Policy, serves_prices
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Query


def served_weight(query: Query, *, settings: Settings, policy: Policy) -> float | None:
    """The weight of cost of a checked query (>= 0); None: that of the reward setting, as the policy learned it.

    Raises InvalidInput where it wants one of its own and the policy has one for all questions.
    """
    wanted = query.cost_weight
    if wanted is None:
        return None
    if not serves_prices(policy):
        raise InvalidInput(
            f"the policy {policy.algorithm} has one weight of cost for all questions",
            field="cost_weight",
            remedy="leave cost_weight out, or set policy.name to one that keeps quality and cost apart, such as mba",
        )
    return settings.prices[wanted] if isinstance(wanted, str) else float(wanted)
