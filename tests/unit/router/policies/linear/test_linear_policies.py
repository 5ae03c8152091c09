"""LinUCB, Thompson sampling and softmax against closed forms, chance and dense sums; test_ridge.py has their heads."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import epsilon_greedy, pmf_of_one
from ragbandit.router.policies.linear.linucb import LinUcb
from ragbandit.router.policies.linear.mba import MbaRag
from ragbandit.router.policies.linear.ridge import RidgeHeads
from ragbandit.router.policies.linear.softmax import Softmax
from ragbandit.router.policies.linear.thompson import LinTs, chance_of_being_best
from ragbandit.shared.types import Query
from ragbandit.testing.policies import sha_of, taught
from ragbandit.testing.policy_examples import ARMS, made_features, made_reward, made_updates
from tests.support.examples import steady

QUERY = Query(text="who?")


def heads_after(updates):
    heads = RidgeHeads(ridge=10.0, bias_ridge=1.0)
    for update in updates:
        heads.learn(update)
    return heads


def output_of(policy, features, arms=ARMS):
    return pmf_of_one(policy, QUERY, features=features, arms=arms)


def phi(u):
    return 0.5 * math.erfc(-u / math.sqrt(2.0))


def dense_chance(means, widths):
    """P(best) by a rectangle sum over 8 widths around every arm, a million points on each arm's own scale."""
    means, widths = np.array(means), np.array(widths)
    found = []
    for i in range(means.size):
        u = (np.arange(1_000_000) + 0.5) / 1_000_000 * 16.0 - 8.0
        x = means[i] + widths[i] * u
        product = np.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi) * (u[1] - u[0])
        for j in range(means.size):
            if j != i:
                # A table of Phi, finer than the error that is tested.
                v = np.clip((x - means[j]) / widths[j], -9.0, 9.0)
                product = product * np.interp(v, GRID, TABLE)
        found.append(product.sum())
    return found


GRID = np.linspace(-9.0, 9.0, 72_001)
TABLE = np.array([phi(u) for u in GRID])


# --- from a prediction to a pmf -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LinUcb, LinTs, MbaRag, Softmax])
@pytest.mark.parametrize("size", [5, 24, 96])
def test_learns_an_arm_that_is_better(make, size):
    """An arm that always pays more becomes the likeliest and has the highest score."""
    policy = make()
    for update in made_updates(60, size=size):
        policy.learn(replace(update, reward=made_reward(0.9 if update.arm == ARMS[1] else 0.1)))
    output = output_of(policy, made_features(5, size=size))
    assert output.pmf.index(max(output.pmf)) == output.scores.index(max(output.scores)) == 1


@pytest.mark.parametrize("make", [LinUcb, LinTs, Softmax])
def test_scores_are_posterior_means(make):
    """The scores are the means and not the bounds, so that their argmax is the greedy policy."""
    updates = made_updates(90)
    output = output_of(taught(partial(make, block=1), updates), made_features(8))
    means = heads_after(updates).predict(made_features(8), arms=ARMS).value
    assert output.scores == pytest.approx(means, abs=1e-12)


def test_linucb_is_greedy_on_the_bounds():
    """The pmf is epsilon-greedy on score + alpha * width, and the log has these bounds and epsilon."""
    updates = made_updates(90)
    policy = taught(lambda: LinUcb(alpha=1.5, epsilon=0.3, block=1), updates)
    output = output_of(policy, made_features(8), (*ARMS, "newcomer"))
    prediction = heads_after(updates).predict(made_features(8), arms=(*ARMS, "newcomer"))
    bounds = [value + 1.5 * width for value, width in zip(prediction.value, prediction.width, strict=True)]
    assert output.facts["ucb"] == pytest.approx(bounds, abs=1e-12)
    assert output.pmf == epsilon_greedy(output.facts["ucb"], epsilon=0.3)
    assert output.facts["epsilon"] == 0.3


def test_linucb_tries_what_it_does_not_know():
    """A new arm has a lower mean than arms that pay .3 +- .2, and the highest bound; with alpha 0 it is not tried."""
    updates = [replace(one, reward=made_reward(0.1 + 0.4 * (one.seq % 2))) for one in made_updates(300)]
    for alpha, likeliest in ((4.0, True), (0.0, False)):
        policy = taught(lambda alpha=alpha: LinUcb(alpha=alpha, epsilon=0.0), updates)
        output = output_of(policy, made_features(8), (*ARMS, "newcomer"))
        assert output.scores[-1] < min(output.scores[:-1])
        assert (output.pmf[-1] == 1.0) == likeliest


def test_linucb_shares_ties():
    """A fresh policy has one bound for all arms and gives all the same probability."""
    assert output_of(LinUcb(), made_features(1)).pmf == pytest.approx((1 / 3,) * 3, abs=1e-15)


def test_lints_uses_scale_times_width():
    """The pmf is the chance of being best with the heads' means and scale times their widths, which are logged."""
    updates = made_updates(60)
    output = output_of(taught(lambda: LinTs(scale=0.7, block=1), updates), made_features(8))
    prediction = heads_after(updates).predict(made_features(8), arms=ARMS)
    widths = [0.7 * width for width in prediction.width]
    assert output.facts["width"] == widths
    assert output.pmf == chance_of_being_best(prediction.value, widths=widths)


def test_lints_without_scale_is_greedy():
    """With scale 0 the best mean has probability 1; a fresh policy shares the tie."""
    output = output_of(taught(lambda: LinTs(scale=0.0), made_updates(60)), made_features(8))
    assert output.pmf[output.scores.index(max(output.scores))] == 1.0
    assert output_of(LinTs(scale=0.0), made_features(8)).pmf == pytest.approx((1 / 3,) * 3, abs=1e-15)


def test_lints_grows_sure():
    """With more rows of the same rewards the better arm's probability rises towards 1."""
    updates = [
        replace(update, reward=made_reward(0.6 if update.arm == ARMS[0] else 0.5)) for update in made_updates(3000)
    ]
    policy, shares = LinTs(), []
    for count, update in enumerate(updates, start=1):
        policy.learn(update)
        if count in (30, 300, 3000):
            shares.append(output_of(policy, made_features(8)).pmf[0])
    assert shares[0] < shares[1] < shares[2]
    assert shares[2] > 0.99


# --- the chance of being best ----------------------------------------------------------------------------------------

means = st.floats(-2.0, 2.0)
widths = st.floats(1e-6, 3.0)


@steady
@given(first=means, second=means, wide=widths, narrow=widths)
def test_two_arms_have_a_closed_form(first, second, wide, narrow):
    """P(first is best) = Phi((m1 - m2) / sqrt(s1^2 + s2^2)), to 1e-9."""
    found = chance_of_being_best((first, second), widths=(wide, narrow))
    assert found[0] == pytest.approx(phi((first - second) / math.hypot(wide, narrow)), abs=1e-9)


@pytest.mark.parametrize(
    ("means", "widths"),
    [
        ((0.1, 0.0, -0.2), (0.2, 0.3, 0.1)),
        ((0.5, 0.4, 0.45, 0.1, 0.52, 0.3), (0.05, 0.2, 0.1, 0.4, 0.01, 0.3)),
        ((0.0, 1e-3, -0.4), (1.0, 1e-3, 0.05)),
        ((0.0, 0.0, 0.0, 0.0), (1.0, 1e-2, 1e-4, 1e-5)),
        ((-5.0, 0.0, 0.3), (2.0, 0.1, 0.001)),
    ],
    ids=["alike", "six", "one_narrow", "four_scales", "far"],
)
def test_many_arms_equal_a_dense_sum(means, widths):
    """Whatever the widths, a rectangle sum of a million points per arm gives the same to 1e-6."""
    assert chance_of_being_best(means, widths=widths) == pytest.approx(dense_chance(means, widths), abs=1e-6)


@steady
@given(count=st.integers(1, 8), mean=means, width=st.floats(0.0, 3.0))
def test_arms_alike_share(count, mean, width):
    """Arms with one mean and one width, also width 0, have 1/K each, to 1e-9."""
    found = chance_of_being_best((mean,) * count, widths=(width,) * count)
    assert found == pytest.approx((1 / count,) * count, abs=1e-9)


@steady
@given(
    arms=st.lists(st.tuples(means, st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 1.0])), min_size=1, max_size=6),
    shift=st.floats(-100.0, 100.0),
    scale=st.sampled_from([1.0, 2.0**-20, 2.0**20]),
)
def test_units_do_not_matter(arms, shift, scale):
    """Means moved together, and means and widths times one number, leave the pmf to 1e-6; it sums to 1."""
    # Multiples of 2^-20 can be moved without rounding: a mean that rounds onto another would be a tie of its own.
    first = tuple(round(mean * 2**20) / 2**20 for mean, _ in arms)
    width = tuple(width for _, width in arms)
    shift = round(shift * 2**20) / 2**20
    found = chance_of_being_best(first, widths=width)
    other = chance_of_being_best(
        tuple((mean + shift) * scale for mean in first), widths=tuple(one * scale for one in width)
    )
    assert sum(found) == pytest.approx(1.0, abs=1e-12)
    assert min(found) >= 0.0
    assert other == pytest.approx(found, abs=1e-6)


def test_sure_arms():
    """Arms of width 0 stand where they stand: the best wins all, ties share, an unsure arm wins by its tail."""
    assert chance_of_being_best((0.1, 0.3, 0.2), widths=(0.0, 0.0, 0.0)) == (0.0, 1.0, 0.0)
    assert chance_of_being_best((0.3, 0.3, 0.2), widths=(0.0, 0.0, 0.0)) == (0.5, 0.5, 0.0)
    found = chance_of_being_best((0.3, 0.3, 0.1, 0.2), widths=(0.0, 0.0, 0.0, 0.4))
    tail = phi((0.2 - 0.3) / 0.4)
    assert found == pytest.approx(((1 - tail) / 2, (1 - tail) / 2, 0.0, tail), abs=1e-9)


@pytest.mark.parametrize("tiny", [1e-10, 1e-14, 1e-100, 1e-200, 5e-324])
def test_tiny_width_is_as_good_as_none(tiny):
    """A width that nobody can tell from 0 gives what 0 gives, to 1e-6, without a warning; a lone tie stays a tie."""
    arms = (0.3, 0.1, 0.2)
    sure = chance_of_being_best(arms, widths=(0.0, 0.3, 0.4))
    assert chance_of_being_best(arms, widths=(tiny, 0.3, 0.4)) == pytest.approx(sure, abs=1e-6)
    assert chance_of_being_best((0.2, 0.2), widths=(tiny, tiny)) == pytest.approx((0.5, 0.5), abs=1e-9)


# --- softmax ---------------------------------------------------------------------------------------------------------


def test_softmax_odds():
    """The odds of two arms are exp(difference of scores / temperature)."""
    output = output_of(taught(lambda: Softmax(temperature=0.07), made_updates(60)), made_features(8))
    for i in range(3):
        for j in range(3):
            odds = math.exp((output.scores[i] - output.scores[j]) / 0.07)
            assert output.pmf[i] / output.pmf[j] == pytest.approx(odds, rel=1e-9)


def test_softmax_does_not_overflow():
    """At a temperature of 1e-6 the best arm has everything; at 1e6 all arms are alike."""
    cold = output_of(taught(lambda: Softmax(temperature=1e-6), made_updates(60)), made_features(8))
    warm = output_of(taught(lambda: Softmax(temperature=1e6), made_updates(60)), made_features(8))
    assert cold.pmf[cold.scores.index(max(cold.scores))] == 1.0
    assert warm.pmf == pytest.approx((1 / 3,) * 3, abs=1e-6)


# --- wrong params ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linucb", "mba", "softmax", "lints"])
@pytest.mark.parametrize("block", [1, 16])
def test_a_calibrated_score_takes_the_place_of_scores_as_they_were(name, block):
    """After 300 scores of .9 forty calibrated ones of .2 win; without calibration they would not."""
    arm = ARMS[0]

    def quality(*, calibrated):
        # no alarm: it would notice the change by itself here
        policy = make_policy(name, params={"block": block} | ({"alarm": 1e18} if name == "mba" else {}))
        for number, update in enumerate(made_updates(340, arms=(arm,))):
            raw = 0.9 if calibrated and number >= 300 else None
            reward = replace(made_reward(0.9 if number < 300 else 0.2), judged_by="judge", raw_quality=raw)
            policy.learn(replace(update, reward=replace(reward, sample_weight=0.3)))
        return output_of(policy, made_features(5), (arm,)).facts["quality"][0]

    assert quality(calibrated=True) < 0.45 < 0.7 < quality(calibrated=False)


def test_scores_wait_for_the_first_calibrated_one_through_a_snapshot():
    """What an arm's scores count as is in the state, so that a policy that was restored gives them up as well."""
    rows = [
        replace(update, reward=replace(update.reward, judged_by="judge", raw_quality=raw, sample_weight=0.25))
        for update, raw in zip(made_updates(60), [None] * 40 + [0.5] * 20, strict=True)
    ]
    straight, first, back = (make_policy("mba", params={"block": 8}) for _ in range(3))
    for row in rows[:40]:
        first.learn(row)
    back.restore(*first.state())
    for row in rows:
        straight.learn(row)
    for row in rows[40:]:
        back.learn(row)
    assert sha_of(back) == sha_of(straight)
