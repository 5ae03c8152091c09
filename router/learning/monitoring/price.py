"""Explains `reward.weight` and dollar budgets in sentences.

reward = quality - weight * cost, so an arm that costs c more pays if its quality is higher by weight * c.
"""

from typing import TYPE_CHECKING, Final

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import serves_prices
from ragbandit.shared.texts.formats import worth
from ragbandit.shared.types import CHOOSES_ARM

if TYPE_CHECKING:
    from ragbandit.router.config.settings import RewardSettings, Settings

#: `price_words` without a price
FREE: Final = "cost counts for nothing, and the better of two arms is taken, however expensive it is"


def price_words(reward: "RewardSettings") -> str | None:
    """What a right answer is worth, in each term that is charged; None without a price."""
    prices = {term: price for term, price in reward.cost.items() if price > 0.0}
    if reward.weight == 0.0 or not prices:
        return None
    amounts = [worth(1.0 / (reward.weight * price), term) for term, price in prices.items()]
    return f"a right answer is worth {' or '.join(amounts)}"


def cost_unit_of(reward: "RewardSettings") -> str:
    """Unit of a cost in the reward: the one term that is charged with the price 1, else "cost"."""
    charged = [(term, price) for term, price in reward.cost.items() if price > 0.0]
    return charged[0][0].removesuffix("_total") if len(charged) == 1 and charged[0][1] == 1.0 else "cost"


def budget_warnings(settings: "Settings") -> list[str]:
    """Warnings about settings because of which dollar budgets cannot slow down spending by a higher cost weight."""
    if not any(tenant.dollars_per_day or tenant.dollars_per_month for tenant in settings.tenants.values()):
        return []
    notes = []
    if not serves_prices(make_policy(settings.policy.name, params=settings.policy.params)):
        name = settings.policy.name
        notes.append(f"policy.name: {name} has one weight of cost for all questions: dollar budgets only stop (429)")
    elif settings.reward.weight == 0.0:
        notes.append("reward.weight is 0: no factor raises it, so dollar budgets pace no question that names no price")
    if not settings.reward.cost.get("dollars"):
        notes.append("reward.cost prices no dollars: as a dollar budget is spent, the price of other terms rises")
    if len(settings.worker_arms) < len(settings.arms):
        notes.append(f"a caller that names some, not all arms is refused (403) unless its key has {CHOOSES_ARM}=true")
    return notes
