"""What a cost weight means, in words."""

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.learning.monitoring.price import price_words
from tests.support.cases import every_case


def test_weight_and_prices_in_words():
    """What a right answer is worth in each priced term; nothing without a price."""
    rows = [
        ({"steps": 1.0}, 0.05, "a right answer is worth 20 steps"),
        ({"steps": 2.0}, 0.04, "a right answer is worth 12.5 steps"),
        ({"dollars": 1.0}, 2.0, "a right answer is worth 50 cents"),
        ({"dollars": 1.0, "steps": 1.0}, 0.05, "a right answer is worth $20.00 or 20 steps"),
        ({"steps": 1.0}, 0.0, None),
        ({"steps": 0.0}, 0.05, None),
    ]
    with every_case() as case:
        for cost, weight, words in rows:
            with case(cost, weight):
                assert price_words(RewardSettings(cost=cost, weight=weight)) == words
