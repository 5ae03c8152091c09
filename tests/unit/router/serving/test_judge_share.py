"""The judge's share: which answers are judged more often, and what weighted scores say of all questions."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.sources import selection_weight
from ragbandit.router.serving.deciding.steps.judge_share import LEAST_JUDGED, JudgeShare
from ragbandit.router.serving.deciding.steps.step import Question
from ragbandit.shared.types import JudgeRequest, Query
from tests.support.examples import made_decision

SHARE, HELD, COUNT = 0.1, 0.05, 3000
JUDGE = {"generator": {"name": "scripted", "script": {"": "{}"}}, "share": SHARE, "first": 60}


@pytest.fixture
def make_step(monkeypatch):
    """A function that makes the step with as many learned decisions, and settings of the policy."""

    def make(*, learned=60, **policy) -> JudgeShare:
        step = JudgeShare(SimpleNamespace(read=nullcontext))
        arms = {name: {"run_by": "caller"} for name in ("small", "large")}
        step.configure(SimpleNamespace(settings=Settings(arms=arms, judge=JUDGE, policy=policy)))
        counts = {"learned": learned, "judge_due": 0}
        place = "ragbandit.router.serving.deciding.steps.judge_share.stored_counts"
        monkeypatch.setattr(place, lambda _connection, *, label: counts)
        return step

    return make


def questions(count=COUNT) -> list[Question]:
    """Questions of which `large`, the arm of the holdback, answers HELD."""
    made = []
    for number in range(count):
        is_control = number % round(1 / HELD) == 0
        arm, propensity = ("large", HELD) if is_control else ("small", 1.0 - HELD)
        pmf = (1.0 - HELD, HELD)
        one = made_decision(f"q{number}", arms=("small", "large"), pmf=pmf, arm=arm, propensity=propensity)
        made.append(Question(query=Query(text="q"), run_by="caller", allowed=one.arms, decision=one))
    return made


def drawn(step, made) -> list[JudgeRequest | None]:
    step.after(SimpleNamespace(questions=made, secret=b"of the store"))
    return [question.fact(JudgeRequest) for question in made]


def test_control_answers_are_judged_more_often(make_step):
    """Answers of the compared arm are judged with a larger probability, in the mean the share; weighted scores speak of
    all questions.
    """
    step, made = make_step(holdback={"arm": "large", "share": HELD}), questions()
    assert drawn(step, made[:300]) == [None] * 300  # before the traffic is known
    step.refresh(arms=(), now=0.0)
    requests = drawn(step, made)
    is_control = np.array([one.decision.arm == "large" for one in made])
    q = np.array([request.q for request in requests])
    assert q.mean() == pytest.approx(SHARE, rel=0.03)
    assert q[is_control].mean() > 4 * SHARE
    assert q.min() == pytest.approx(LEAST_JUDGED * SHARE)
    assert all(request.asked == (request.draw < request.q) for request in requests)
    asked = np.array([request.asked for request in requests])
    weights = np.array([selection_weight({JudgeRequest.key: request.stored}, source="judge") for request in requests])
    assert np.average(is_control[asked], weights=weights[asked]) == pytest.approx(HELD, abs=0.02)
    assert is_control[asked].mean() > 3 * HELD
    assert selection_weight({JudgeRequest.key: requests[0].stored}, source="human") == 1.0


def test_the_share_is_drawn_alike_without_a_comparison(make_step):
    """Nothing is drawn when a decision is made while every answer is judged, or without an arm to compare with."""
    for settings in ({"holdback": {"arm": "large", "share": HELD}, "learned": 59}, {}):
        step = make_step(**settings)
        drawn(step, questions(300))
        step.refresh(arms=(), now=0.0)
        assert drawn(step, questions(300)) == [None] * 300
