"""The one verdict: better, worse, as good, not known yet; with what is missing, and about how long it takes."""

import pytest

from ragbandit.router.comparison import Comparison, Difference, about_time, compare, forecast_ends
from ragbandit.router.comparison.words import sentence

DAY_S = 86_400.0


def compared(low: float | None, estimate: float | None, high: float | None, **changes: object) -> Comparison:
    reward = Difference(estimate=estimate, low=low, high=high, effective_rows=100.0)
    values: dict[str, object] = {"questions": 400, "rated": 100, "reward": reward, "seconds": 3 * DAY_S, "needed": 10}
    return compare("routing", "always deep", design="live traffic", **(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "estimate", "high", "verdict"),
    [
        (0.001, 0.1, 0.2, "better"),
        (-0.2, -0.1, -0.001, "worse"),
        (-0.05, 0.0, 0.05, "as good"),
        (0.0, 0.0, 0.0, "as good"),
        (-0.036, -0.016, 0.004, "as good"),
        (-0.039, -0.019, 0.001, "not known yet"),
        (-0.051, 0.1, 0.3, "not known yet"),
        (None, 0.1, None, "not known yet"),
    ],
)
def test_the_interval_gives_the_verdict(low, estimate, high, verdict):
    """An interval without 0 is better or worse, one above minus the margin as good, and any other is not known yet.

    Nor is it known if 0 is at the very end of an interval above minus the margin: the interval of another design would
    exclude it.
    """
    comparison = compared(low, estimate, high)
    assert (comparison.verdict, comparison.missing is None) == (verdict, verdict != "not known yet")
    assert (comparison.progress == 1.0) == (verdict != "not known yet")


def test_no_point_stands_beside_what_is_not_known():
    """Without a verdict the sentence has no estimate, and of the interval its ends if they say anything."""
    open_verdict, empty = sentence(compared(-0.1, 0.077, 0.3)), sentence(compared(-0.7, 0.077, 0.6))
    assert "-0.100 to +0.300" in open_verdict
    assert "0.077" not in open_verdict + empty
    assert "-0.7" not in empty
    assert "0.077" in sentence(compared(0.01, 0.077, 0.3))
    bounded = compared(0.02, None, 0.3, quality=Difference(low=0.01, high=0.2, first=0.94))
    assert sentence(bounded) == "routing is better than always deep: +0.020 to +0.300 reward a question; quality better"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (0.5, 1.0, "50 % less cost"),
        (0.001, 1.0, "over 99 % less cost"),
        (0.0, 1.0, "100 % less cost"),
        (9.0, 1.0, "800 % more cost"),
        (636.41, 1.0, "640 times the cost"),
        (1.0, 1e-12, "more than 1,000 times the cost"),
    ],
)
def test_a_cost_over_almost_nothing_has_no_percentage(first, second, words):
    """A cost that is many times the other one is given in times, and a cost above 0 is never 100 % less."""
    low, high = sorted((0.99 * (first - second), 1.01 * (first - second)))
    cost = Difference(estimate=first - second, low=low, high=high, first=first, second=second)
    assert sentence(compared(0.1, 0.2, 0.3, cost=cost)).endswith(f"; {words}")


def test_what_is_missing_is_a_range_and_a_time():
    """The largest end of a forecast is four times the smallest; what is too far away is not known."""
    comparison = compared(-0.1, 0.05, 0.2)  # half of .15 has to become .1: 2.25 times the ratings
    assert (
        comparison.missing
        == "about 110 to 440 rated questions in all (100 so far), within about a week at today's rate"
    )
    assert (
        compared(-0.1, 0.05, 0.2, seconds=None, outlook=4.0).missing
        == "about 200 to 800 rated questions in all (100 so far)"
    )
    assert compared(-0.1, 0.05, 0.2, unsteady="a safe start").missing == "not known how long: a safe start"
    for high in (900.0, float("inf"), float("nan")):
        assert "not known how long: few ratings" in str(compared(-0.9, 0.0, high).missing)
    assert "not known how long: few ratings" in str(compared(-0.1, 0.05, 0.2, outlook=5.1).missing)
    assert compared(None, 0.0, None, needed=200).missing == "not known how long: 100 of 200 effective rated questions"
    near_worse = compared(-0.04, -0.02, 0.001)  # half of .0205 has to become .02
    assert (
        near_worse.missing
        == "about 100 to 400 rated questions in all (100 so far), within about a week at today's rate"
    )
    assert (forecast_ends(0.2), forecast_ends(5.0), forecast_ends(1_234.0)) == ((1, 4), (2, 8), (620, 2_500))


def test_progress_has_one_scale():
    """The bar is the width that surely suffices divided by the width of the interval; without one it is near 0."""
    assert compared(-0.1, 0.05, 0.2).progress == pytest.approx(0.05 / 0.3)
    assert compared(None, 0.0, None, needed=200).progress == pytest.approx(0.05)


def test_a_blocked_comparison_has_no_verdict():
    """A log that contradicts itself gives no verdict, however clear the numbers are."""
    comparison = compared(0.1, 0.2, 0.3, blocked="the draws are not as logged")
    assert (comparison.verdict, comparison.missing) == ("not known yet", "the draws are not as logged")


def test_times_are_rough():
    """No time is below a minute or has a second digit without need."""
    words = [about_time(seconds) for seconds in (0.1, 130.0, 3_700.0, 36.0 * 3_600, 8 * DAY_S, 100 * DAY_S, 1e9)]
    assert words == [
        "about a minute", "about 2 minutes", "about an hour", "about 2 days", "about a week", "about 3 months", "years"
    ]  # fmt: skip
