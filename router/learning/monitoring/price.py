"""Explains `reward.weight` in sentences.

reward = quality - weight * cost, so an arm that costs c more pays if its quality is higher by weight * c.
"""

from typing import TYPE_CHECKING, Final

from ragbandit.shared.texts.formats import worth

if TYPE_CHECKING:
    from ragbandit.router.config.learning import RewardSettings

#: printed in place of `price_words` if no cost is charged
FREE: Final = "cost counts for nothing, and the better of two arms is taken, however expensive it is"


def price_words(reward: "RewardSettings") -> str | None:
    """The worth of a right answer, in each term that is charged; None without a price."""
    prices = {term: price for term, price in reward.cost.items() if price > 0.0}
    if reward.weight == 0.0 or not prices:
        return None
    amounts = [worth(1.0 / (reward.weight * price), term) for term, price in prices.items()]
    return f"a right answer is worth {' or '.join(amounts)}"


def dollars_of_reward(reward: "RewardSettings") -> float | None:
    """Dollars that a reward of 1 is worth; None if dollars are not the only cost that is charged."""
    charged = {term: price for term, price in reward.cost.items() if price > 0.0}
    if reward.weight == 0.0 or charged.keys() != {"dollars"}:
        return None
    return 1.0 / (reward.weight * charged["dollars"])


def cost_unit_of(reward: "RewardSettings") -> str:
    """Unit of a cost in the reward: the one term that is charged with the price 1, else "cost"."""
    charged = [(term, price) for term, price in reward.cost.items() if price > 0.0]
    return charged[0][0].removesuffix("_total") if len(charged) == 1 and charged[0][1] == 1.0 else "cost"
