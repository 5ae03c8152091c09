"""Calibration of a judge's scores: the isotonic curve against an oracle, arms, weights, and when fits are made."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.learning.ratings.calibration import (
    KEPT,
    PAIRS_NEEDED,
    PAIRS_USED,
    Calibrator,
    calibrated,
    fit_point,
    fitted,
    isotonic,
    next_fit,
)
from ragbandit.shared.types import CalibrationPair
from ragbandit.testing.policy_examples import made_reward
from tests.support.examples import steady

sklearn_isotonic = pytest.importorskip("sklearn.isotonic")


def made_pairs(count, *, seed=0, bias=0.15, first=1, slope=1.0):
    """Scores that tell half the truth, .15 too high for arm a."""
    rng = np.random.default_rng(seed)
    pairs = []
    for number in range(first, first + count):
        arm, quality = "abc"[int(rng.integers(3))], float(rng.random() < 0.5)
        score = 0.5 + 0.24 * slope * (quality - 0.5) + 0.2 * rng.standard_normal() + (bias if arm == "a" else 0.0)
        pairs.append(
            CalibrationPair(
                number=number, decision_id=f"d{number}", arm=arm, score=float(score), quality=quality, after_seq=number
            )
        )
    return pairs


scores = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1)
points = st.lists(st.tuples(scores, st.floats(0, 1)), min_size=1)


@steady
@given(points=points, asked=st.lists(st.floats(-1, 2), max_size=5))
def test_curve_is_the_isotonic_regression(points, asked):
    """At every score, and between and beyond them, the value is scikit-learn's to 1e-9; it never falls."""
    curve = isotonic(points)
    x, y = (np.array(side) for side in zip(*points, strict=True))
    oracle = sklearn_isotonic.IsotonicRegression(out_of_bounds="clip").fit(x, y)
    everywhere = sorted({*asked, *x.tolist()})
    values = [curve.at(score) for score in everywhere]
    assert values == sorted(values)
    # Scores closer than float32 can tell are one to the oracle.
    if len(set(np.float32(x).tolist())) == len(set(x.tolist())) and np.diff(np.unique(x)).min(initial=1.0) > 1e-4:
        assert values == pytest.approx(oracle.predict(np.array(everywhere)).tolist(), abs=1e-6)


def test_the_curve_is_the_closest_that_never_falls():
    """No other function that never falls, on a grid of values, has a smaller squared error: brute force."""
    rng = np.random.default_rng(3)
    grid = np.linspace(0.0, 1.0, 11)
    for _ in range(8):
        y = rng.choice(grid, size=4)
        curve = isotonic([(float(place), float(value)) for place, value in enumerate(y)])
        found = sum((curve.at(float(place)) - value) ** 2 for place, value in enumerate(y))
        best = min(
            sum((one - value) ** 2 for one, value in zip(values, y, strict=True))
            for values in np.array(np.meshgrid(*[grid] * 4)).reshape(4, -1).T
            if (np.diff(values) >= 0).all()
        )
        assert found <= best + 1e-12


def test_an_arm_that_the_judge_favours_is_corrected():
    """With 3,000 pairs the calibrated mean of every arm is people's to .03, though raw scores lie .15 apart."""
    pairs = made_pairs(3000)
    fit = fitted(pairs)
    for arm in "abc":
        own = [pair for pair in pairs if pair.arm == arm]
        worth = np.mean([fit.quality(pair.score, arm=arm) for pair in own])
        assert worth == pytest.approx(np.mean([pair.quality for pair in own]), abs=0.03)


def test_an_arm_without_pairs_has_the_common_curve_and_no_weight():
    """What nobody has compared counts as nothing yet."""
    fit = fitted([pair for pair in made_pairs(300) if pair.arm != "c"])
    assert fit.quality(0.5, arm="c") == min(max(fit.curve.at(0.5), 0.0), 1.0)
    assert fit.rows("c") == 0.0
    assert fit.rows("a") > 0.0


def test_a_score_counts_as_what_it_explains():
    """A judge that knows counts as nearly a row, one of AUC .8 as a quarter, one that guesses as none."""
    knows, good, guesses = (fitted(made_pairs(3000, slope=slope, bias=0.0)).rows("a") for slope in (20.0, 1.0, 0.0))
    assert knows > 0.9
    assert 0.15 < good < 0.4
    assert guesses <= 1 / 64


def test_all_alike_explains_nothing():
    """Where people said the same of everything there is nothing to explain, and no division by nothing."""
    pairs = [
        CalibrationPair(number=n + 1, decision_id=f"{n}", arm="a", score=n / 60, quality=1.0, after_seq=n)
        for n in range(60)
    ]
    fit = fitted(pairs)
    assert (fit.quality(0.3, arm="a"), fit.rows("a")) == (1.0, 0.0)


@steady
@given(count=st.integers(0, 60_000))
def test_the_fit_in_force(count):
    """None before 50 pairs; then the last of a row of places that two in a hundred more pairs lead to."""
    place = fit_point(count)
    assert (place == 0) == (count < PAIRS_NEEDED)
    if place:
        assert place <= count < next_fit(place)
        assert fit_point(place) == place


@pytest.mark.parametrize("start", [0, 49, 50, 333])
def test_a_calibrator_that_starts_later_has_the_same_fit(start):
    """From the stored pairs, wherever it starts, and however often it is asked."""
    pairs = made_pairs(400)
    straight = Calibrator()
    for pair in pairs:
        straight.extend([pair])
        _ = straight.fit
    begun = Calibrator()
    begun.extend(pairs[:start])
    begun.extend(pairs[start:])
    assert begun.fit == straight.fit == fitted(pairs[: fit_point(400)])
    assert Calibrator().fit is None


def test_old_pairs_are_given_up(monkeypatch):
    """A fit uses the newest PAIRS_USED of its pairs, and no more than those since are kept."""
    monkeypatch.setattr("ragbandit.router.learning.ratings.calibration.PAIRS_USED", 100)
    monkeypatch.setattr("ragbandit.router.learning.ratings.calibration.KEPT", 102)
    pairs = made_pairs(1000)
    straight, later = Calibrator(), Calibrator(count=796)
    straight.extend(pairs)
    later.extend(pairs[796:])
    assert straight.fit == later.fit
    assert len(straight._newest) <= 204
    assert straight.fit.pairs == fitted(pairs[fit_point(1000) - 100 : fit_point(1000)]).pairs
    assert (KEPT, PAIRS_USED) == (5100, 5000)


def test_a_calibrated_reward_tells_the_score():
    """Quality, value and weight are the fit's, the score stays beside them; a judge that counts as none goes on so."""
    fit = fitted(made_pairs(500))
    raw = made_reward(0.9, cost=2.0)
    made = calibrated(raw, arm="a", fit=fit)
    assert (made.raw_quality, made.quality, made.sample_weight) == (0.9, fit.quality(0.9, arm="a"), fit.rows("a"))
    assert made.value == made.quality - raw.weight * raw.cost
    assert calibrated(replace(raw, sample_weight=0.0), arm="a", fit=fit).sample_weight == 0.0
