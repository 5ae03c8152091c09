"""The share of a holdback that `advise --apply` writes."""

import pytest

from ragbandit.router.comparison import Difference, compare
from ragbandit.router.comparison.holdback_size import Traffic, holdback_size
from ragbandit.router.policies.draw import falling_share


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
        (compared(0.002), 0.5, 0.3, 0.1),  # a verdict is out of reach
        (compared(-0.1), 0.5, 0.3, 0.1),
    ],
)
def test_the_smallest_share_that_soon_gives_a_verdict(comparison, routed, rated, share):
    """The share grows as the gain becomes smaller, and if bounds are of no use."""
    assert holdback_size(comparison, routed=routed, traffic=Traffic(rated=rated)).share == share


def test_the_sentence_has_answers_questions_and_cost():
    """Learned answers until the share falls, questions until a verdict, and the extra cost of the holdback until then.

    A warm start's rows of the arm are learned answers, too.
    """
    size = holdback_size(compared(0.09), routed=0.5, traffic=Traffic(rated=0.3, learned=100))
    assert size.sentence == (
        "until 163 of its answers are learned, then falling to 2 %: a verdict after about 400 questions, if 30 % are "
        "rated; it costs about $0.1 until then"
    )
    assert size.setting == {"share": 0.05, "until": 163, "then": 0.02}
    assert holdback_size(compared(-0.1), routed=0.5, traffic=Traffic(rated=0.3, learned=7)).until == 207


def test_more_traffic_needs_a_smaller_share():
    """A verdict within a day is soon enough."""
    busy = holdback_size(compared(0.09), routed=0.5, traffic=Traffic(rated=0.3, per_day=50_000))
    assert busy.setting == {"share": 0.02}


@pytest.mark.parametrize("learned", [0, 100])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.98])
def test_more_questions_never_make_a_report_less_sure(learned, kept):
    """The expected variance of the mean difference, (sum of 1 / share) / n^2, only falls, whatever the policy draws."""
    total, last = 0.0, float("inf")
    for questions in range(1, 5_000):
        share = falling_share(0.1, until=200, end=0.02, learned=round(learned))
        total += 1.0 / share
        learned += 0.3 * (kept + (1.0 - kept) * share)
        assert total / questions**2 < last
        last = total / questions**2
