"""Running bounds: equal to the ones over arrays, true at every row, and the same however rows come in."""

import numpy as np
import pytest

from ragbandit.router.offline.estimation import confidence_sequences as arrays
from ragbandit.router.rollouts import evidence, sequences
from ragbandit.router.rollouts.predictions import Predictions
from ragbandit.router.rollouts.sequences import Capital, Sequence, Stream, scores_of


def rows(count, *, rng, weight=0.25, gap=0.0):
    """(share, pmf, arm, value, guess) of a canary of two policies that differ on half of the rows."""
    at = np.arange(count)
    champion = np.full((count, 3), 0.05)
    candidate = champion.copy()
    champion[:, 0] = 0.9
    other = np.where(rng.random(count) < 0.5, 1, 0)
    candidate[at, other] = 0.9
    pmf = (1 - weight) * champion + weight * candidate
    arm = (pmf.cumsum(axis=1) > rng.random(count)[:, None]).argmax(axis=1)
    value = (rng.random(count) < 0.5 + gap * (arm == 1)).astype(float)
    return candidate - champion, pmf, arm, value, np.full((count, 3), 0.5)


def scores(share, pmf, arm, value, guess):
    return scores_of(share=share, pmf=pmf, arm=arm, value=value, guess=guess)


def test_it_is_the_sequence_over_arrays(monkeypatch):
    """With the same bets and reaches, the lower bound of a difference is that of the offline estimator, at any row."""
    monkeypatch.setattr(arrays, "_BETS", sequences._BETS)
    monkeypatch.setattr(arrays, "_REACHES", sequences.REACHES)
    share, pmf, arm, value, guess = rows(600, rng=np.random.default_rng(1), gap=0.3)
    champion = np.array([0.9, 0.05, 0.05])
    lows, _ = arrays.doubly_robust(
        value,
        action=arm,
        pmf=pmf,
        candidate=share + champion,
        rival=np.broadcast_to(champion, pmf.shape),
        model=guess,
        rewards=(0.0, 1.0),
        confidence=0.9,
        looks=np.array([50, 300, 600]),
    )
    running, found = Sequence(stream=Stream(floor=-1.0, null=0.0, alpha=0.05)), []
    for here in (slice(0, 50), slice(50, 300), slice(300, 600)):
        running.add(scores(share, pmf, arm, value, guess)[:, here])
        found.append(running.lower(alpha=0.05))
    assert np.maximum.accumulate(found) == pytest.approx(lows, abs=1e-9)


def test_pages_do_not_show():
    """Rows one by one, or all at once, prove the claim after the same row, and give the same bound."""
    made = scores(*rows(800, rng=np.random.default_rng(2), gap=0.6))
    whole, single = (Sequence(stream=Stream(floor=-1.0, null=0.0, alpha=0.05)) for _ in range(2))
    whole.add(made)
    for row in range(made.shape[1]):
        single.add(made[:, row : row + 1])
    assert whole.proven_at is not None
    assert whole.proven_at == single.proven_at
    assert whole.lower(alpha=0.05) == pytest.approx(single.lower(alpha=0.05))


def test_a_claim_that_is_wrong_is_rarely_proven():
    """Under no difference, looked at after each of 1,500 rows, at most one of ten claims with alpha 0.1 is made."""
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(100):
        sequence = Sequence(stream=Stream(floor=-1.0, null=0.0, alpha=0.1))
        sequence.add(scores(*rows(1500, rng=rng, weight=0.05)))
        wrong += sequence.proven_at is not None
    assert wrong <= 10


def test_scores_are_unbiased_and_bounded():
    """The mean over draws is the difference of the policies, whatever the guess; no score is below floor - reach."""
    rng = np.random.default_rng(4)
    share, pmf, _, _, _ = rows(1, rng=rng)
    truth = np.array([0.2, 0.9, 0.4])
    guess = rng.random((1, 3))
    each = [scores(share, pmf, np.array([arm]), np.array([truth[arm]]), guess)[:, 0] for arm in range(3)]
    assert pmf[0] @ np.stack(each) == pytest.approx([share[0] @ truth] * len(sequences.REACHES))
    made = scores(*rows(2000, rng=rng, weight=0.01))
    assert (made.min(axis=1) >= -1.0 - sequences.REACHES - 1e-9).all()


def test_the_asymptotic_width_is_the_published_one(monkeypatch):
    """For variance 0.25 and alpha 0.05, tightest at 5,000 rows: the values of the paper's formula, computed apart."""
    monkeypatch.setattr(evidence, "_TUNED_ROWS", 5000.0)
    widths = 0.5 * evidence._half_width(np.array([100.0, 500.0, 1000.0, 5000.0, 20000.0]), alpha=0.05)
    assert widths == pytest.approx([0.330344, 0.082267, 0.049844, 0.019651, 0.010141], abs=2e-6)


def test_fair_bets_stay_poor_and_unfair_ones_grow():
    """Factors of mean 1 do not refute the log; factors whose mean is above 1 do, after a row that is told."""
    rng = np.random.default_rng(5)
    fair, unfair = Capital(bets=2, alpha=0.001), Capital(bets=2, alpha=0.001)
    fair.add(1.0 + 0.3 * rng.choice([-1.0, 1.0], size=(2, 5000)))
    unfair.add(1.0 + 0.3 * rng.choice([-1.0, 1.0], p=[0.3, 0.7], size=(2, 5000)))
    assert fair.refuted_at is None
    assert unfair.refuted_at is not None
    assert unfair.refuted_at < 500


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
    paged = Predictions()
    pages = [
        paged.before(("one", "two"), arm=arm[here], value=value[here], scores=scores[here])
        for here in (slice(0, 3), slice(3, 30), slice(30, 40))
    ]
    assert np.concatenate(pages) == pytest.approx(first)
