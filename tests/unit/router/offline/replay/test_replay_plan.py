"""Plans of a replay: reward models, notes about the log, refused plans and candidates."""

import pytest

from ragbandit.router.offline.replay import Plan, parse_candidates
from ragbandit.shared.errors import InvalidInput


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
