"""The arithmetic of quality and cost, on tables small enough to work out by hand."""

import itertools
import math
import random

import numpy as np
import pytest

from ragbandit.router.comparison.page import page
from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.learning.reward import explicit_reward
from ragbandit.router.offline.simulation import simulate
from ragbandit.router.offline.simulation.measure import (
    above_line,
    assessment,
    cheapest_right,
    greedy,
    line_arms,
    point_of,
    rewards_of,
)
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from tests.support.examples import made_table

ARMS = ("none", "single_step", "multi_step")

#: four questions: right under none, single or multi, or nothing
TABLE = made_table([[1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]], [[0, 1, 2], [0, 1, 4], [0, 1, 4], [0, 1, 6]])


def test_line_by_hand():
    """The line goes straight through the two arms, also outside of them; of arms that cost the same the better one."""
    always = [np.eye(3)[[place] * 4] for place in line_arms(TABLE)]
    assert [point_of(one, table=TABLE, total=8) for one in always] == [(25.0, 1.0), (25.0, 4.0)]
    line = [-above_line((0.0, steps), ends=((25.0, 0.0), (50.0, 1.0))) for steps in (0.0, 0.5, 1.0, 2.0, -1.0)]
    assert line == [25.0, 37.5, 50.0, 75.0, 0.0]
    assert above_line((40.0, 2.0), ends=((25.0, 1.0), (30.0, 1.0))) == 10.0


def test_line_of_other_arms():
    """A table without single_step and multi_step is measured by its cheapest and its most expensive arm."""
    assert line_arms(TABLE) == (1, 2)
    assert line_arms(made_table([[1, 0, 0]], [[5, 1, 3]], arms=("x", "y", "z"))) == (1, 0)


def test_oracle_is_the_cheapest_right_arm():
    """The oracle chooses the cheapest right arm, or the cheapest of all if none is right."""
    assert cheapest_right(TABLE).tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("weight", "choices"),
    [
        (0.0, [0, 1, 2, 0]),
        (0.2, [0, 1, 2, 0]),
        (0.25, [0, 1, 0, 0]),  # 1 - 0.25 * 4 = 0: no better than nothing for nothing
        (1.0, [0, 0, 0, 0]),
        (-0.1, [1, 2, 2, 2]),
    ],
)
def test_oracle_by_reward(weight, choices):
    """The best arm by correct - weight * steps; of equal ones the cheaper."""
    rewards = rewards_of(TABLE, weight=weight, price=1.0, bounds=(-math.inf, math.inf))
    assert greedy(rewards, cost=TABLE.steps).tolist() == choices


def test_rewards_are_those_of_the_learner():
    """Bit for bit what router.learning.reward makes of a rating and an outcome, with price, weight and bounds."""
    random.seed(3)
    correct = [[random.random() for _ in ARMS] for _ in range(50)]
    steps = [[random.uniform(0, 9) for _ in ARMS] for _ in range(50)]
    table = made_table(correct, steps)
    reward = RewardSettings(weight=0.13, cost={"steps": 1.7}, minimum=-0.5, maximum=0.6)
    found = rewards_of(table, weight=0.13, price=1.7, bounds=(-0.5, 0.6))
    for i, k in itertools.product(range(50), range(3)):
        made = explicit_reward(
            [made_feedback(decision_id="d", settings=None, now=0.0, rating=correct[i][k])],
            outcome=made_outcome(decision_id="d", now=0.0, status="answered", steps=steps[i][k]),
            settings=reward,
            how="first",
        )
        assert found[i, k] == made.value
    assert {-0.5, 0.6} <= set(found.ravel().tolist())


def test_a_page_has_every_policy_and_arm():
    """The page of a simulation has a point for each policy, each fixed arm and the oracle."""
    rows = simulate(TABLE, policies={"uniform": {}, "fixed": {"arm": TABLE.arms[0]}}, folds=2, seeds=2)
    made = assessment(rows)
    assert [point.name.partition(" ")[0].removesuffix("*") for point in made.frontier] == [row.policy for row in rows]
    assert made.sentence.startswith("uniform answers")
    assert page(made).count('class="mark ') == len(rows)
