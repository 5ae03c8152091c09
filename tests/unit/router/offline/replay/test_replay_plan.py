"""Plans of a replay: reward models, notes about the log, refused plans and candidates."""

from dataclasses import replace

import pytest

from ragbandit.router.offline.replay import Plan, parse_candidates
from ragbandit.shared.errors import InvalidInput
from tests.support.logs.replay_logs import hand_rows, judged, lived_rows


def test_sources_of_rewards():
    """Default rewards and rows without features are counted and noted."""
    rows = lived_rows(6)
    rows[0] = replace(rows[0], reward=replace(rows[0].reward, source="default", preset="default"))
    found = judged(rows, "uniform")
    assert found.notes == ("1 of 6 rewards are the default: nobody judged those answers",)
    unknown = "a question that occurs several times is not recognised, and counts as several"
    assert judged(hand_rows(), "uniform").notes == (
        f"5 rows have neither text nor features: {unknown}",
        "the rows have no features: the reward model knows the arms' means only",
    )


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"folds": 1}, "folds"),
        ({"weight": -0.1}, "price"),
        ({"weight": float("nan")}, "price"),
        ({"weight": float("inf")}, "price"),
        ({"floor": 0.6}, "floor"),
        ({"floor": float("nan")}, "floor"),
    ],
)
def test_plan_is_refused(plan, field):
    """A plan that cannot be is refused by the name of what is wrong, with a remedy."""
    with pytest.raises(InvalidInput) as caught:
        Plan(**plan)
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "no candidate is named"),
        (["uniform", "uniform"], "is named twice"),
        (["arm:fast"], "is not a candidate"),
        (["fixed:"], "is not a candidate"),
        ([""], "is not a candidate"),
    ],
)
def test_candidates_are_refused(names, said):
    """Names that cannot be candidates are refused with the ways to name one."""
    with pytest.raises(InvalidInput, match=said) as caught:
        parse_candidates(names)
    assert caught.value.field == "policy"
    assert caught.value.remedy
