"""The interval of a mean difference from a random sample of questions: it covers, and never says what cannot be."""

import numpy as np
import pytest

from ragbandit.router.reporting.paired_difference import DifferenceSample, expected_half_width, sampled_difference

LOOKS = (5, 20, 60, 200, 400)


def between(*ends):
    """Differences between their ends, as an array of shape (n, 2)."""
    return np.array(ends, dtype=float).reshape(-1, 2)


def known(values):
    return between(*zip(values, values, strict=True))


def sample(
    values, *, drawn_from: int, questions: int | None = None, others=(), least=-2.0, most=2.0
) -> DifferenceSample:
    questions = questions or drawn_from + len(others)
    return DifferenceSample(
        drawn=known(values), drawn_from=drawn_from, others=between(*others), routed=questions, least=least, most=most
    )


def test_it_covers_at_every_look():
    """In at least 95 of 100 made worlds, no look at a growing sample misses the mean: also with rare large losses, with
    kinds of questions that differ, and if every question of the period is asked.
    """
    chance = np.random.default_rng(3)
    means = np.repeat([0.5, -0.5], 200)
    kinds = (
        (lambda: chance.integers(0, 2, 400) - (chance.random(400) < 0.5) * 1.0, 0.0),
        (lambda: np.where(chance.random(400) < 0.97, 0.04, -1.3), 0.97 * 0.04 - 0.03 * 1.3),
        (lambda: np.where(chance.random(400) < 0.01, 1.9, 0.0), 0.019),
        (lambda: chance.permutation(np.where(chance.random(400) < 0.9, means, 0.0)), 0.0),
    )
    for kind, truth in kinds:
        missed = 0
        for _ in range(100):
            values = kind()
            found = [sampled_difference(sample(values[:look], drawn_from=400)) for look in LOOKS]
            missed += any(not one.low <= truth <= one.high for one in found)
        assert missed <= 5


def test_what_is_not_known_is_bounded():
    """Without answers the ends are what is possible; questions that cannot be asked widen them by their own bounds."""
    nothing = sampled_difference(sample([], drawn_from=5, questions=10, least=-1.0, most=0.5))
    assert (nothing.low, nothing.estimate, nothing.high) == (-0.5, None, 0.25)
    values = np.tile([0.5, 0.1], 100)
    alone = sampled_difference(sample(values, drawn_from=400, questions=500))
    others = between(*[(-0.6, 0.9)] * 50)
    both = sampled_difference(sample(values, drawn_from=400, questions=500, others=others))
    assert both.low == pytest.approx(alone.low - 50 * 0.6 / 500)
    assert both.high == pytest.approx(alone.high + 50 * 0.9 / 500)
    assert both.low < both.estimate < both.high


def test_an_answer_without_a_score_lies_between_its_bounds():
    """Each end of the interval takes the worst of what an answer without a score may be worth."""
    values = np.tile([0.2, 0.4], 50).tolist()
    asked = between(*known(values), *[(-0.8, 1.0)] * 50)
    found = sampled_difference(
        DifferenceSample(drawn=asked, drawn_from=150, others=between(), routed=150, least=-2.0, most=2.0)
    )
    worst, best = (sampled_difference(sample([*values, *[end] * 50], drawn_from=150)) for end in (-0.8, 1.0))
    assert (found.low, found.high) == (worst.low, best.high)


@pytest.mark.parametrize("count", [30, 100, 300])
def test_a_forecast_is_near(count):
    """The forecast is at least half of the width that comes, and at most one and a half times as wide."""
    chance = np.random.default_rng(1)
    values = (chance.random(1000) < 0.9) * 1.0 - (chance.random(1000) < 0.7)
    found = sampled_difference(sample(values[:count], drawn_from=1000))
    ratio = expected_half_width(count, sample=sample(values[:20], drawn_from=1000)) / ((found.high - found.low) / 2.0)
    assert 0.5 < ratio < 1.5
