"""Bounds that hold at every look: by hand, exact on average, true at every row, the same however rows come in."""

import itertools

import numpy as np
import pytest

from ragbandit.shared.confidence_sequences import BETS, REACHES, BettingSequence, asymptotic_width, robust_scores
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


def capital(scores, mean, *, floor):
    """Capital of all bets against this mean, computed row by row. scores: shape (reaches, rows)."""
    least = (floor - REACHES)[:, None, None]
    bets = BETS[None, :, None] / (1.0 - least)
    return np.mean(np.prod((1 + bets * (scores[:, None] - least)) / (1 + bets * (mean - least)), axis=2))


@pytest.mark.parametrize("floor", [-1.0, -0.5])
def test_by_hand(floor):
    """The bound is the mean at which the average capital is 1 / alpha; below it every mean is refuted, above none."""
    scores = np.random.default_rng(1).gamma(0.5, 2.0, (2, 200)) - 0.9
    sequence = BettingSequence(floor=floor, null=0.9, alpha=0.1)
    sequence.add(scores)
    bound = sequence.lower()
    assert capital(scores, bound, floor=floor) == pytest.approx(10.0, rel=1e-7)
    assert floor < bound < scores.mean()
    for mean in np.linspace(floor + 0.001, 0.999, 99):
        assert (capital(scores, mean, floor=floor) >= 10) == (mean <= bound)


def test_capital_is_fair():
    """Over all sequences of a coin, weighted by their chance, the capital at the true mean is 1: no bet has an edge."""
    chance, total = 0.3, 0.0
    for tosses in itertools.product([0.0, 1.0], repeat=8):
        likely = np.prod([chance if toss else 1 - chance for toss in tosses])
        sequence = BettingSequence(floor=0.0, null=chance, alpha=0.05)
        sequence.add(np.tile(tosses, (2, 1)))
        total += likely * np.exp(sequence.grown - 8 * sequence._costs(chance)).mean()
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
    sequence = BettingSequence(floor=0.0, null=0.5, alpha=0.05)
    sequence.add(np.tile(-REACHES[:, None], 1000))
    assert sequence.lower() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("wrong", [-1.1, np.nan])
def test_scores_below_the_least_are_refused(wrong):
    """A score below the promised least value, or no number at all, would break the proof."""
    with pytest.raises(InvalidInput):
        BettingSequence(floor=0.0, null=0.5, alpha=0.05).add(np.array([[0.5, wrong], [0.5, 0.5]]))


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
    whole, single = (BettingSequence(floor=-1.0, null=0.0, alpha=0.05) for _ in range(2))
    whole.add(made)
    for row in range(made.shape[1]):
        single.add(made[:, row : row + 1])
    assert whole.proven_at is not None
    assert whole.proven_at == single.proven_at
    assert whole.lower() == pytest.approx(single.lower())


def test_a_claim_that_is_wrong_is_rarely_proven():
    """Under no difference, looked at after each of 1,500 rows, at most one of ten claims with alpha 0.1 is made."""
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(100):
        sequence = BettingSequence(floor=-1.0, null=0.0, alpha=0.1)
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
