"""A judge's scores as a control variate: the slope from earlier rows, against the plain formula."""

import numpy as np
import pytest

from ragbandit.shared.confidence_sequences import JudgeSlopes, judge_score

ARMS = ("a", "b")


def made(count, *, alike, seed=1, rated=0.5):
    """Arms, values and scores; alike: share of the scores that are the value itself, so their correlation."""
    random = np.random.default_rng(seed)
    arm = random.integers(2, size=count)
    right = (random.random(count) < np.array([0.6, 0.9])[arm]).astype(np.float64)
    judge = np.where(random.random(count) < alike, right, random.random(count) < 0.7).astype(np.float64)
    value = np.where(random.random(count) < rated, right, np.nan)
    judge[random.random(count) < 0.2] = np.nan
    return arm, value, judge


def test_the_slope_is_of_earlier_rows_alone():
    """That of least squares among the answers of each arm, drawn to 0 by 20 rows, in [0, 1]; 0 before 20 rows."""
    arm, value, judge = made(300, alike=0.6)
    found = JudgeSlopes().before(ARMS, arm=arm, value=value, judge=judge)
    for row in (0, 30, 100, 299):
        both = np.flatnonzero(~np.isnan(value[:row] + judge[:row]))
        parts = [both[arm[both] == one] for one in (0, 1)]
        y, g = (
            np.concatenate([each[rows] - each[rows].mean() for rows in parts if len(rows)] or [[]])
            for each in (value, judge)
        )
        expected = (g @ y) / (g @ g) * len(both) / (len(both) + 20) if len(both) >= 20 else 0.0
        assert found[row] == pytest.approx(expected)


def test_a_judge_who_knows_nothing_or_the_contrary():
    """Scores of no correlation hardly count, those that are lower for better answers do not."""
    arm, value, judge = made(4_000, alike=0.0)
    assert JudgeSlopes().before(ARMS, arm=arm, value=value, judge=judge)[-1] < 0.05
    arm, value, judge = made(4_000, alike=0.8)
    assert JudgeSlopes().before(ARMS, arm=arm, value=value, judge=judge)[-1] > 0.6
    assert (JudgeSlopes().before(ARMS, arm=arm, value=value, judge=1.0 - judge) == 0.0).all()


def test_scores_that_know_who_was_rated():
    """Where rated answers score otherwise than the others of their arm, scores are not used any more."""
    arm, value, judge = made(4_000, alike=0.8)
    bought = np.where(np.isnan(value), 0.0, judge)
    slopes = JudgeSlopes().before(ARMS, arm=arm, value=value, judge=bought)
    assert (slopes[500:] == 0.0).all()


def test_a_judge_beside_a_rating():
    """The score is in the row's JSON, or there is none."""
    assert judge_score('{"judge": 0.25, "event": 1.0}') == 0.25
    assert np.isnan([judge_score(text) for text in (None, "{}", '{"event": 1.0}')]).all()
