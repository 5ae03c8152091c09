"""What a cost weight means, in words."""

from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.learning.monitoring.price import in_words
from tests.support.cases import every_case


def test_weight_and_prices_in_words():
    """What a right answer is worth in each priced term, and what that implies where dollars have a price."""
    rows = [
        ({"steps": 1.0}, None, ["a right answer is worth 20 steps", "which the papers use"], 2),
        ({"steps": 1.0}, 0.05, ["a right answer is worth 20 steps"], 1),
        ({"steps": 2.0}, 0.04, ["12.5 steps"], 1),
        ({"dollars": 1.0}, None, ["$20.00", "one cent more must be right on 0.05 more", "chosen for steps"], 3),
        ({"dollars": 1.0}, 2.0, ["worth 50 cents", "must be right on 2 more of 100"], 2),
        ({"dollars": 1.0, "steps": 1.0}, 0.05, ["$20.00 or 20 steps", "warning: one step counts as much as 1"], 3),
        ({"dollars": 1.0, "steps": 0.05}, 2.0, ["step counts as much as 0.05 dollars: is that"], 3),
        ({"steps": 1.0}, 0.0, ["reward.weight is 0: cost counts for nothing"], 1),
        ({"steps": 0.0}, 0.05, ["reward.cost prices nothing: cost counts for nothing"], 1),
    ]  # fmt: skip
    with every_case() as case:
        for cost, weight, parts, count in rows:
            with case(cost, weight):
                words = in_words(RewardSettings(cost=cost, **({} if weight is None else {"weight": weight})))
                assert len(words) == count
                assert all(part in " ".join(words) for part in parts)
