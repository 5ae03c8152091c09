"""The share of a holdback that `advise --apply` writes."""

import pytest

from ragbandit.router.comparison import Difference, compare
from ragbandit.workers.evaluation.holdback import holdback_size


def compared(gain, *, quality=(0.94, 0.93), dollars=-0.005):
    """Routing against an arm."""
    differences = {
        "reward": Difference(estimate=gain, low=gain - 0.02, high=gain + 0.02),
        "quality": Difference(estimate=0.01, first=quality[0], second=quality[1]),
        "cost": Difference(estimate=dollars),
    }
    values = {"questions": 100, "rated": 100, "unit": "dollars", **differences}
    return compare("routing", "always big", design="paired outcomes", **values)


@pytest.mark.parametrize(
    ("comparison", "routed", "rated", "share"),
    [
        (compared(0.3, quality=(0.95, 0.95)), 0.7, 1.0, 0.02),
        (compared(0.09), 0.5, 0.3, 0.05),  # routing would be better even if the arm were always right
        (compared(0.09, quality=(0.8, 0.75)), 0.5, 0.3, 0.1),  # the best possible answers bound nothing
        (compared(0.002), 0.5, 0.3, 0.05),  # a verdict is out of reach
        (compared(-0.1), 0.5, 0.3, 0.05),
    ],
)
def test_the_smallest_share_that_soon_gives_a_verdict(comparison, routed, rated, share):
    """The share grows as the gain becomes smaller, and if bounds are of no use."""
    assert holdback_size(comparison, routed=routed, rated=rated).share == share


def test_the_sentence_has_questions_and_cost():
    """The questions until a verdict, and the extra cost of the holdback until then."""
    size = holdback_size(compared(0.09), routed=0.5, rated=0.3)
    assert size.sentence == "a verdict after about 400 questions, if 30 % are rated; it costs about $0.1"
    assert holdback_size(compared(-0.1), routed=0.5, rated=0.3).questions is None
