"""Bounds that hold at every look: by hand, exact on average, true at every row, the same however rows come in."""

import itertools

import numpy as np
import pytest

from ragbandit.shared.confidence_sequences import (
    BETS,
    REACHES,
    BettingSequence,
    MeanClaim,
    asymptotic_width,
    robust_scores,
)
from ragbandit.shared.errors import InvalidInput

ARMS = 3


def made_log(count, *, seed=0):
    """Arguments of a made log with a model that is right on average."""
    random = np.random.default_rng(seed)
    pmf, candidate = (random.dirichlet(np.full(ARMS, shape), count) for shape in (1.0, 0.3))
    pmf = 0.9 * pmf + 0.1 / ARMS
    action = (pmf.cumsum(axis=1)[:, :-1] < random.random((count, 1))).sum(axis=1)
    chance = random.random((count, ARMS))
    reward = (random.random(count) < chance[np.arange(count), action]).astype(float)
    return {"reward": reward, "action": action, "pmf": pmf, "candidate": candidate, "model": chance}


def lower_bound(scores, *, least, low, high, alpha=0.05):
    """The lower bound of the mean of scores of one sort."""
    sequence = BettingSequence(least=np.array([least]), within=(low, high), bets=BETS)
    sequence.add(scores[None])
    return sequence.lower(alpha=alpha)


def test_by_hand():
    """The bound is the mean at which the average capital of the bets, multiplied out row by row, is 1 / alpha."""
    scores = np.random.default_rng(1).gamma(0.5, 2.0, 200) - 1.0
    bound = lower_bound(scores, least=-1.0, low=-1.0, high=2.0, alpha=0.1)
    capital = [np.prod((1 + bet * (scores + 1)) / (1 + bet * (bound + 1))) for bet in BETS / 3.0]
    assert np.mean(capital) == pytest.approx(10.0, rel=1e-7)
    assert -1.0 < bound < scores.mean()


def test_against_a_grid():
    """No mean of a fine grid below the bound is left standing, none above it is refuted."""
    scores = np.random.default_rng(2).random(300)
    bound = lower_bound(scores, least=0.0, low=0.0, high=1.0)
    for mean in np.linspace(0.001, 0.999, 499):
        capital = np.mean([np.prod((1 + bet * scores) / (1 + bet * mean)) for bet in BETS])
        assert (capital >= 20) == (mean <= bound)


def test_capital_is_fair():
    """Over all sequences of a coin, weighted by their chance, the capital at the true mean is 1: no bet has an edge."""
    chance, total = 0.3, 0.0
    for tosses in itertools.product([0.0, 1.0], repeat=8):
        likely = np.prod([chance if toss else 1 - chance for toss in tosses])
        rows = np.array(tosses)[None]
        sequence = BettingSequence(least=np.zeros(1), within=(0.0, 1.0), bets=BETS)
        sequence.add(rows)
        total += likely * np.exp(sequence.grown[0] - 8 * np.log1p(BETS * chance)).mean()
    assert total == pytest.approx(1.0, rel=1e-12)


def test_scores_have_one_mean():
    """Cut or not, on average over the arm drawn every score is what the model-free one is, and none is below -reach."""
    log = made_log(200)
    chance = log["model"]
    for share, floor in ((log["candidate"], 0.0), (log["candidate"] - log["pmf"], -1.0)):
        mean = np.zeros((len(REACHES), 200))
        for arm, gain in itertools.product(range(ARMS), (0.0, 1.0)):
            action = np.full(200, arm)
            scores = robust_scores(share=share, pmf=log["pmf"], arm=action, value=np.full(200, gain), guess=1 - chance)
            assert (scores >= floor - REACHES[:, None] - 1e-12).all()
            mean += scores * log["pmf"][:, arm] * np.where(gain, chance, 1 - chance)[:, arm]
        truth = (share * chance).sum(axis=1)
        np.testing.assert_allclose(mean, np.broadcast_to(truth, mean.shape), atol=1e-12)


def test_constant_scores():
    """Scores at their least value say nothing against it: the bound stays at the bottom of the range."""
    assert lower_bound(np.zeros(1000), least=0.0, low=0.0, high=1.0) == pytest.approx(0.0, abs=1e-9)


def test_scores_below_the_least_are_refused():
    """A score below the promised least value, or no number at all, would break the proof."""
    for wrong in (-0.1, np.nan):
        with pytest.raises(InvalidInput):
            lower_bound(np.array([0.5, wrong]), least=0.0, low=0.0, high=1.0)


#: a candidate is better than the champion
CLAIM = MeanClaim(floor=-1.0, null=0.0, alpha=0.05)


def canary(count, *, rng, weight=0.25, gap=0.0):
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
    return robust_scores(share=share, pmf=pmf, arm=arm, value=value, guess=guess)


def test_pages_do_not_show():
    """Rows one by one, or all at once, prove the claim after the same row, and give the same bound."""
    made = scores(*canary(800, rng=np.random.default_rng(2), gap=0.6))
    whole, single = (BettingSequence.of(CLAIM) for _ in range(2))
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
        sequence = BettingSequence.of(MeanClaim(floor=-1.0, null=0.0, alpha=0.1))
        sequence.add(scores(*canary(1500, rng=rng, weight=0.05)))
        wrong += sequence.proven_at is not None
    assert wrong <= 10


def test_scores_are_unbiased_and_bounded():
    """The mean over draws is the difference of the policies, whatever the guess; no score is below floor - reach."""
    rng = np.random.default_rng(4)
    share, pmf, _, _, _ = canary(1, rng=rng)
    truth = np.array([0.2, 0.9, 0.4])
    guess = rng.random((1, 3))
    each = [scores(share, pmf, np.array([arm]), np.array([truth[arm]]), guess)[:, 0] for arm in range(3)]
    assert pmf[0] @ np.stack(each) == pytest.approx([share[0] @ truth] * len(REACHES))
    made = scores(*canary(2000, rng=rng, weight=0.01))
    assert (made.min(axis=1) >= -1.0 - REACHES - 1e-9).all()


def test_the_asymptotic_width_is_the_published_one():
    """For variance 0.25 and alpha 0.05, tightest at 5,000 rows: the values of the paper's formula, computed apart."""
    rows = np.array([100.0, 500.0, 1000.0, 5000.0, 20000.0])
    widths = 0.5 * asymptotic_width(rows, alpha=0.05, tightest_at=5000.0, sides=1)
    assert widths == pytest.approx([0.330344, 0.082267, 0.049844, 0.019651, 0.010141], abs=2e-6)
