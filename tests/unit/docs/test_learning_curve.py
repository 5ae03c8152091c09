"""The demo's learning curve, on passes worked out by hand."""

import numpy as np
import pytest

from ragbandit.examples.handbook.command import HERE
from ragbandit.examples.handbook.learning_curve import (
    assessment,
    chart,
    curve_of,
    learned,
    safe_start,
    sentence,
)
from ragbandit.router.config.loading import load
from ragbandit.router.offline.passes import Played
from tests.support.additions import needs
from tests.support.examples import made_table

ARMS = ("no_retrieval", "single_step", "multi_step")


def table_of(count):
    """Every third question is common knowledge, every third in one passage, every third in two."""
    correct = [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]] * (count // 3)
    return made_table(correct, [[0.0, 1.0, 2.0]] * count, arms=ARMS, texts=("what ", "who ", "which "))


TABLE = table_of(300)
REWARDS = TABLE.correct - 0.05 * TABLE.steps


def passed(drawn):
    """The pass over the table in its order that draws these arms."""
    order, drawn = np.arange(len(TABLE.rows)), np.array(drawn, dtype=np.intp)
    return Played(order=order, drawn=drawn, earned=REWARDS[order, drawn])


def curve(*passes):
    return curve_of(passes, name="router", table=TABLE, rewards=REWARDS, incumbent="single_step")


def test_a_router_that_always_picks_right_is_beyond_doubt():
    """A router that always picks right earns what the best arms earn, and the sentence claims a lead."""
    result = curve(passed([0, 1, 2] * 100), passed([0, 1, 2] * 100))
    assert result.points[-1].reward == pytest.approx(0.95) == result.oracle
    assert result.always == pytest.approx({"no_retrieval": 1 / 3, "single_step": 2 / 3 - 0.05, "multi_step": 0.9})
    assert (result.best_fixed, result.break_even, result.beyond_doubt) == ("multi_step", 1, True)
    assert "answers 100% right with 1.0 steps a question; always multi_step 100% with 2.0" in sentence(result)
    assert sentence(result).endswith("more than chance explains.")


def test_a_router_no_better_than_the_best_arm_is_not_praised():
    """Where the band reaches down to always the best arm, the sentence says that chance could explain the rest."""
    result = curve(passed([2] * 300), passed([2] * 300), passed([0, 1, 2] * 100))
    assert (result.points[-1].low, result.always["multi_step"]) == pytest.approx((0.9, 0.9))
    assert result.points[-1].reward > 0.91
    assert not result.beyond_doubt
    assert sentence(result).endswith("chance could explain that.")


def test_the_break_even_is_marked_where_it_is():
    """A router that loses at first breaks even at the question where it has caught up, and the chart marks it."""
    result = curve(passed([0] * 30 + [0, 1, 2] * 90))  # 20 of 30 questions lost at first, nothing afterwards
    ahead = np.cumsum(REWARDS[range(300), [0] * 30 + [0, 1, 2] * 90] - REWARDS[:, 1])
    assert result.break_even == int(np.flatnonzero(ahead < 0)[-1]) + 2
    (line,) = [
        line for line in chart(result) if f"break-even with always single_step: question {result.break_even}" in line
    ]
    assert int(line.split()[0]) >= result.break_even
    assert f"breaks even at question {result.break_even}" in safe_start(result, harm=0.2)


def test_a_lead_is_as_wide_as_questions_and_orders_make_it():
    """The lead over an arm has the spread of questions and of passes in its interval, and none comes from one pass."""
    clear, mixed = [0, 1, 2] * 100, [2] * 300
    alike, unlike = curve(passed(clear), passed(clear)).leads, curve(passed(clear), passed(mixed)).leads
    ahead = REWARDS.max(axis=1) - REWARDS[:, 2]
    half = 1.96 * ahead.std(ddof=1) / np.sqrt(300)
    assert alike["multi_step"] == pytest.approx((0.05, 0.05 - half, 0.05 + half))
    assert unlike["multi_step"][0] == pytest.approx(0.025)
    assert unlike["multi_step"][1] < 0 < alike["multi_step"][1]
    assert curve(passed(clear)).leads == {}


@needs("local_models")
def test_both_curves_are_learned_and_drawn(tmp_path):
    """With an incumbent there are two curves; the one held back never falls behind by more than the harm."""
    settings = load(HERE / "config.yaml", environ={}).settings
    encoder = settings.encoder.model_copy(update={"model": "hashing"})
    settings = settings.model_copy(update={"encoder": encoder, "data_dir": str(tmp_path)})
    free, held = learned(table_of(120), settings=settings, seeds=1, incumbent="single_step")
    assert learned(table_of(120), settings=settings, seeds=1, incumbent=None) == (free, None)
    drawn = assessment([free, held])
    assert (free.name, free.questions, held.incumbent) == ("router", 120, "single_step")
    assert held.worst_prefix > 0.8
    assert [curve.name for curve in drawn.curves] == ["without an incumbent", "with an incumbent"]
    assert {len(curve.policy) for curve in drawn.curves} == {len(free.points)}
