"""Results of stored answers that have no price."""

import pytest

from ragbandit.additions.evaluation.kept_answers import StoredAnswer
from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion
from ragbandit.additions.evaluation.results import line_of_arm, table_records
from ragbandit.router.config.learning import RewardSettings
from ragbandit.shared.types import Cost

ROWS = [LabelledQuestion(id=f"q{number}", question="Who?", answers=["Stoker"]) for number in range(2)]


def answer(arm, **cost):
    return StoredAnswer(
        key="k",
        arm=arm,
        question="Who?",
        status="answered",
        answer="Stoker",
        stop_reason="answered",
        error=None,
        steps=0.0,
        cost=Cost(**cost),
        made_by={},
        made_at=0.0,
    )


def test_an_arm_with_an_answer_without_a_price_has_no_mean_in_dollars():
    """Its mean is not known, and the table has the assumed dollars, so that no router finds the arm free."""
    unpriced = [answer("b", dollars=0.02), answer("b", assumed_dollars=0.5)]
    answered = {"a": [answer("a", dollars=0.01)] * 2, "b": unpriced}
    qualities = {arm: [{"em": 1.0, "f1": 1.0, "acc": 1.0}] * 2 for arm in answered}
    means = [line_of_arm(ROWS, arm=arm, answered=answered, qualities=qualities[arm])["dollars"] for arm in "ab"]
    assert means == [pytest.approx(0.01), None]
    reward = RewardSettings(cost={"dollars": 1.0})
    records = list(table_records(ROWS, answered=answered, qualities=qualities, reward=reward))
    assert [record["dollars"] for record in records] == [{"a": 0.01, "b": 0.02}, {"a": 0.01, "b": 0.5}]
