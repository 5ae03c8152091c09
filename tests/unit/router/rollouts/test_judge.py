"""Judge's scores in the evidence on a version: the formula, pages, and bounds that hold for any scores."""

from dataclasses import astuple, replace

import numpy as np
import pytest

from ragbandit.router.rollouts.evidence import Judged, Predictions, RewardDifference
from ragbandit.shared.confidence_sequences import JudgeSlopes
from tests.support.canaries import World, rows

ALPHAS = {"low_alpha": 0.05, "high_alpha": 0.1}


def made(count=1_200, *, seed=1, **world):
    """Decisions of a canary of a quarter, three in ten rated."""
    chosen = World(name="made", labels=True, **{"rated": 0.3, "gap": 0.0, "judge": 0.7, **world})
    return rows(chosen, weight=0.25, count=count, rng=np.random.default_rng(seed))[0]


def evidence_of(judged, *, page=None):
    found = RewardDifference(**ALPHAS)
    for first in range(0, len(judged.draws), page or len(judged.draws)):
        here = slice(first, first + (page or len(judged.draws)))
        judge = None if judged.judge is None else judged.judge[here]
        found.add_judged(replace(judged, draws=judged.draws.cut(here), reward=judged.reward[here], judge=judge))
    return found


def test_the_estimate_is_that_of_the_formula():
    """The mean of doubly robust scores of y - b g, with b times the mean of those of g since the rating before."""
    judged = made()
    draws, y, g = judged.draws, (judged.reward + 1.0) / 2.0, (judged.judge + 1.0) / 2.0
    share, rated = draws.candidate - draws.champion, ~np.isnan(y)
    slopes = JudgeSlopes().before(draws.arms, arm=draws.arm, value=y, judge=g)
    by_judge = Predictions().before(draws.arms, arm=draws.arm, value=g)
    known = draws.cut(rated)
    by_people = np.zeros(share.shape)
    by_people[rated] = Predictions().before(draws.arms, arm=known.arm, value=y[rated], scores=known.scores)
    scores, since = [], []
    for row, arm in enumerate(draws.arm):
        weight = share[row, arm] / draws.pmf[row, arm]
        if not rated[row]:
            since.append(share[row] @ by_judge[row] + weight * (g[row] - by_judge[row, arm]))
            continue
        b = slopes[row] * len(since) / (len(since) + 1)
        guess = by_people[row] - b * by_judge[row]
        scores.append(share[row] @ guess + weight * (y[row] - b * g[row] - guess[arm]) + b * np.mean(since or [0.0]))
        since = []
    found = evidence_of(judged)
    assert found.rows == len(scores)
    assert found.difference.estimate == pytest.approx(2.0 * np.mean(scores))
    assert found.sums[1] == pytest.approx(np.sum(np.square(scores)))


def test_pages_change_nothing():
    """Read in pages of any size, the same scores give the same bounds."""
    whole, paged = evidence_of(made()), evidence_of(made(), page=7)
    assert astuple(whole.difference) == pytest.approx(astuple(paged.difference))


def test_a_judge_narrows_and_noise_does_not():
    """A judge that is mostly right narrows the interval by a tenth; an uninformative one does not change it."""
    judged = made(12_000, rated=0.1)
    rated = ~np.isnan(judged.reward)
    plain = evidence_of(Judged(draws=judged.draws.cut(rated), reward=judged.reward[rated], minimum=-1.0, maximum=1.0))
    noise = replace(judged, judge=np.random.default_rng(2).permutation(judged.judge))
    found = [one.difference for one in (evidence_of(judged), evidence_of(noise), plain)]
    with_judge, with_noise, without = (one.high - one.low for one in found)
    assert with_judge < 0.9 * without
    assert with_noise < 1.02 * without


@pytest.mark.parametrize("scores", ["right", "noise", "contrary", "bought", "missing"])
def test_bounds_hold_whoever_wrote_the_scores(scores):
    """Few of sixty candidates as good as the champion are found better, and few worse, at any look."""
    better, worse = 0, 0
    for seed in range(60):
        judged = made(1_000, seed=seed)
        judge, arm = judged.judge, judged.draws.arm
        given = {
            "right": judge,
            "noise": np.random.default_rng(seed).random(len(arm)),
            "contrary": -judge,
            "bought": np.where(arm == judged.draws.candidate.argmax(axis=1), 1.0, judge),
            "missing": np.where(np.random.default_rng(seed).random(len(arm)) < 0.5, judge, np.nan),
        }[scores]
        known = ~np.isnan(judged.reward) | ~np.isnan(given)
        seen = replace(judged, draws=judged.draws.cut(known), reward=judged.reward[known], judge=given[known])
        points = evidence_of(seen).points
        better += any(low > 0.0 for _, _, low, _ in points)
        worse += any(high < 0.0 for _, _, _, high in points)
    for count, alpha in zip((better, worse), ALPHAS.values(), strict=True):
        assert count <= 60 * alpha + 3.0 * np.sqrt(60 * alpha)


def test_a_prediction_knows_earlier_rows_alone():
    """A prediction changes with what earlier rows earned; with the row itself and later ones it does not."""
    rng = np.random.default_rng(6)
    arm, value = rng.integers(0, 2, 40), rng.random(40)
    scores = np.where(rng.random((40, 1)) < 0.2, np.nan, np.full((40, 2), 0.5))
    changed = value.copy()
    changed[20:] = 1.0 - changed[20:]
    first, second = (
        Predictions().before(("one", "two"), arm=arm, value=told, scores=scores) for told in (value, changed)
    )
    assert np.array_equal(first[:21], second[:21])
    assert not np.array_equal(first[21:], second[21:])
