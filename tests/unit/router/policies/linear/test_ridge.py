"""The ridge heads against closed forms: means, inverses, the noise, the widths, what fades, residuals."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import apply, pmf_of_one
from ragbandit.router.policies.linear.linucb import LinUcb
from ragbandit.router.policies.linear.ridge import RidgeHeads
from ragbandit.shared.errors import ConfigError, PolicyFault
from ragbandit.shared.types import Query
from ragbandit.testing.policies import sha_of, taught
from ragbandit.testing.policy_examples import ARMS, made_features, made_reward, made_updates
from tests.support.policy_examples import maker

SIZE = 24


def output_of(policy, features):
    return pmf_of_one(policy, Query(text="who?"), features=features, arms=ARMS)


def heads_after(updates, *, ridge=10.0, bias_ridge=1.0, memory=None):
    heads = RidgeHeads(ridge=ridge, bias_ridge=bias_ridge, memory=memory)
    for update in updates:
        heads.learn(update)
    return heads


def row_of(features, *, quality=0.5, cost=1.0, weight=0.1, arm=ARMS[0]):
    """One lesson, whatever its seq and question."""
    reward = made_reward(quality, cost=cost, weight=weight)
    return replace(made_updates(1)[0], arm=arm, features=features.astype(np.float32), reward=reward)


def design(features):
    """The row (1, x / sqrt(d)), shape (d+1,)."""
    return np.concatenate([[1.0], features.astype(np.float64) / math.sqrt(features.size)])


def solution(updates, arm, *, ridge, bias_ridge):
    """By linear solves: inverse precision (d+1, d+1), means (2, d+1), scatter that is left (2, 2)."""
    rows = [update for update in updates if update.arm == arm]
    z = np.array([design(update.features) for update in rows])  # (n, d+1)
    y = np.array([(update.reward.quality, update.reward.cost) for update in rows])  # (n, 2)
    precision = np.diag([bias_ridge] + [ridge] * (z.shape[1] - 1)) + z.T @ z
    mean = np.linalg.solve(precision, z.T @ y).T
    return np.linalg.inv(precision), mean, y.T @ y - mean @ precision @ mean.T


@pytest.mark.parametrize(("ridge", "bias_ridge", "size"), [(10.0, 1.0, 24), (0.3, 2.0, 48), (3.0, 0.01, 5)])
def test_posterior_is_the_ridge_solution(ridge, bias_ridge, size):
    """After 300 rows per arm means and inverses of both heads equal the closed form to 1e-9."""
    updates = made_updates(900, seed=3, size=size)
    heads = heads_after(updates, ridge=ridge, bias_ridge=bias_ridge)
    for arm in ARMS:
        inverse, mean, _ = solution(updates, arm, ridge=ridge, bias_ridge=bias_ridge)
        assert np.abs(heads._inverse[arm] - inverse).max() < 1e-9
        assert np.abs(heads._mean[arm] - mean).max() < 1e-9


def test_weights_are_those_of_weighted_least_squares():
    """Rows that count as w give inverse, means and scatter of the regression weighted by w, to 1e-9."""
    rng = np.random.default_rng(7)
    updates = [
        replace(update, reward=replace(update.reward, sample_weight=float(rng.uniform(0.05, 4.0))))
        for update in made_updates(900, seed=4)
    ]
    heads, left, total = heads_after(updates), np.zeros((2, 2)), 0.0
    for arm in ARMS:
        rows = [update for update in updates if update.arm == arm]
        z = np.array([design(update.features) for update in rows])
        y = np.array([(update.reward.quality, update.reward.cost) for update in rows])
        w = np.array([update.reward.sample_weight for update in rows])
        precision = np.diag([1.0] + [10.0] * (z.shape[1] - 1)) + z.T @ (w[:, None] * z)
        mean = np.linalg.solve(precision, z.T @ (w[:, None] * y)).T
        assert np.abs(heads._inverse[arm] - np.linalg.inv(precision)).max() < 1e-9
        assert np.abs(heads._mean[arm] - mean).max() < 1e-9
        left, total = left + y.T @ (w[:, None] * y) - mean @ precision @ mean.T, total + w.sum()
    assert heads._scatter == pytest.approx(left, rel=1e-9)
    assert heads._rows == pytest.approx(total)


@pytest.mark.parametrize("policy", ["linucb", "mba", "vw", "popularity"])
@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), 1e7])
def test_a_weight_that_is_none_is_refused(policy, weight):
    """A row that counts as less than none, or as more than a million, is a PolicyFault, and leaves no trace."""
    taught_one = taught(maker(policy), made_updates(9))
    before, bad = sha_of(taught_one), made_updates(1, first=10)[0]
    with pytest.raises(PolicyFault, match="sample weight"):
        taught_one.learn(replace(bad, reward=replace(bad.reward, sample_weight=weight)))
    assert sha_of(taught_one) == before


@pytest.mark.parametrize("memory", [None, 50.0])
def test_inverse_is_symmetric_to_the_last_bit(memory):
    """After 900 rows every inverse equals its transpose exactly, also where rows fade."""
    heads = heads_after(made_updates(900), memory=memory)
    for arm in ARMS:
        assert np.array_equal(heads._inverse[arm], heads._inverse[arm].T)


def test_scatter_is_what_the_ridge_solution_leaves():
    """The scatter, kept row by row, equals sum y y^T - W precision W^T over the arms to 1e-9 of its size."""
    updates = made_updates(900, seed=5)
    arrays, _ = heads_after(updates).state()
    left = sum(solution(updates, arm, ridge=10.0, bias_ridge=1.0)[2] for arm in ARMS)
    assert arrays["scatter"] == pytest.approx(left, rel=1e-9)


def test_noise_is_that_of_the_rewards():
    """Where quality has noise .2, cost .5 and the weight is .3, the noise of the value is sqrt(.2^2 + .15^2) to 5 %."""
    rng = np.random.default_rng(1)
    slope = {arm: 0.2 * rng.standard_normal(SIZE) for arm in ARMS}
    heads = RidgeHeads(ridge=1.0, bias_ridge=1.0)
    for update in made_updates(3000, seed=2):
        quality = 0.5 + slope[update.arm] @ update.features / math.sqrt(SIZE) + 0.2 * rng.standard_normal()
        heads.learn(replace(update, reward=made_reward(quality, cost=2.0 + 0.5 * rng.standard_normal(), weight=0.3)))
    assert heads.noise == pytest.approx(math.hypot(0.2, 0.15), rel=0.05)


def test_width_is_the_posteriors():
    """The width equals noise * sqrt(z^T P z), with the noise and P of the closed form, to 1e-9."""
    updates = made_updates(200, seed=6)
    found = heads_after(updates).predict(made_features(9), arms=ARMS)
    parts = [solution(updates, arm, ridge=10.0, bias_ridge=1.0) for arm in ARMS]
    covariance = (np.array([[0.25, 0.0], [0.0, 0.0]]) + sum(part[2] for part in parts)) / 201
    price = np.array([1.0, -0.1])
    z = design(made_features(9))
    for (inverse, mean, _), value, width in zip(parts, found.value, found.width, strict=True):
        assert value == pytest.approx(float(price @ mean @ z), abs=1e-9)
        assert width == pytest.approx(math.sqrt(price @ covariance @ price * (z @ inverse @ z)), rel=1e-9)


def test_width_covers_the_truth():
    """Where truths come from the prior, 1.96 widths hold the true value of 95 % of questions, give or take 2 %."""
    rng, inside = np.random.default_rng(4), []
    for world in range(60):
        weights = 0.4 * rng.standard_normal(SIZE + 1) / np.sqrt([1.0] + [4.0] * SIZE)
        heads = RidgeHeads(ridge=4.0, bias_ridge=1.0)
        for update in made_updates(80, arms=ARMS[:1], seed=100 + world):
            quality = float(weights @ design(update.features)) + 0.4 * rng.standard_normal()
            heads.learn(replace(update, reward=made_reward(quality, weight=0.0)))
        for seed in range(40):
            found = heads.predict(made_features(10_000 + seed), arms=ARMS[:1])
            inside.append(abs(weights @ design(made_features(10_000 + seed)) - found.value[0]) < 1.96 * found.width[0])
    assert len(inside) == 2400
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_arm_without_rows_has_the_prior():
    """It has mean 0 and width noise * sqrt(1/bias_ridge + |x|^2 / d / ridge), before any row with noise .5."""
    x = made_features(3)
    prior = math.sqrt(1 / 2.0 + float((x.astype(np.float64) ** 2).mean()) / 5.0)
    fresh = heads_after([], ridge=5.0, bias_ridge=2.0)
    late = heads_after(made_updates(100), ridge=5.0, bias_ridge=2.0)
    assert fresh.noise == 0.5
    assert late.noise != 0.5
    for heads in (fresh, late):
        found = heads.predict(x, arms=["newcomer"])
        assert (found.quality, found.cost, found.value) == ((0.0,), (0.0,), (0.0,))
        assert found.width[0] == pytest.approx(heads.noise * prior, rel=1e-12)


def test_rows_make_the_width_shrink():
    """An arm's width falls with every row like its own question's; the other arms keep their spread."""
    x = made_features(3)
    heads = RidgeHeads(ridge=1.0, bias_ridge=1.0)
    spreads = []
    for update in made_updates(20, arms=ARMS[:1]):
        found = heads.predict(x, arms=ARMS)
        spreads.append([width / heads.noise for width in found.width])
        heads.learn(replace(update, features=x))
    shrunk = np.array(spreads)
    assert (np.diff(shrunk[:, 0]) < 0).all()
    assert np.ptp(shrunk[:, 1:]) < 1e-12


def test_weight_is_that_of_the_last_row():
    """The weight is 0 before any row and then the last judged row's; scores and facts use it at once."""
    updates = made_updates(10)
    policy = taught(LinUcb, updates)
    assert output_of(LinUcb(), made_features(1)).facts["weight"] == 0.0
    assert output_of(policy, made_features(1)).facts["weight"] == 0.1
    policy.learn(replace(updates[0], reward=made_reward(0.5, cost=2.0, weight=0.4)))
    facts = output_of(policy, made_features(1)).facts
    scores = [q - 0.4 * c for q, c in zip(facts["quality"], facts["cost"], strict=True)]
    assert facts["weight"] == 0.4
    assert list(output_of(policy, made_features(1)).scores) == scores


def test_reward_without_parts_is_learned_as_it_is():
    """A reward that the caller made itself moves the value towards it, at the weight that was in force."""
    judged = made_updates(20, arms=ARMS[:1])
    given_ = replace(judged[0].reward, preset="reward", weight=0.0, value=0.7, quality=0.7, cost=3.0)
    heads = heads_after([*judged, *(replace(judged[0], reward=given_) for _ in range(5000))])
    assert heads.weight == 0.1
    assert heads.predict(judged[0].features, arms=ARMS[:1]).value[0] == pytest.approx(0.7, abs=0.01)


def test_learning_one_arm_leaves_the_others():
    """An update moves the drawn arm's arrays and the shared scatter, no other arm's arrays."""
    heads = heads_after(made_updates(30))
    before = {name: array.copy() for name, array in heads.state()[0].items()}
    heads.learn(replace(made_updates(1, first=31)[0], arm=ARMS[0]))
    for name, array in heads.state()[0].items():
        assert np.array_equal(array, before[name]) == (not name.endswith((ARMS[0], "scatter")))


@pytest.mark.parametrize("name", ["linucb", "mba"])
@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e200])
def test_number_that_cannot_be_learned_is_refused(name, block, number):
    """A quality, cost, weight or feature that is not finite or too large is a PolicyFault and changes nothing."""
    params = {"block": block} | ({"alarm": 100.0} if name == "mba" else {})  # so low that sums and alarms are there
    policy = taught(lambda: make_policy(name, params=params), made_updates(200))
    row = made_updates(1, first=201)[0]
    before = sha_of(policy)
    spoilt = row.features.copy()
    spoilt[3] = number if not math.isfinite(number) else math.inf
    names = ("quality", "cost", "weight")
    if number == 1e200:
        names = ("quality", "weight")  # a cost that is only too large counts as the most that the reward can say
    bad = [replace(row, reward=replace(row.reward, **{name: number})) for name in names]
    for update in (*bad, replace(row, features=spoilt)):
        with pytest.raises(PolicyFault):
            policy.learn(update)
        assert not apply(policy, update)
        assert sha_of(policy) == before
    assert apply(policy, row)


# --- the quick way ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [None, 60.0])
def test_quick_has_the_same_means(memory):
    """Quality, cost and value of any arms in any order, known or not, are those of `predict`, to 1e-12."""
    heads = heads_after(made_updates(120), memory=memory)
    for seed, arms in enumerate((ARMS, ARMS[::-1], ARMS[1:2], ("newcomer", *ARMS), ("newcomer",))):
        slow, quick = (way(made_features(seed), arms=arms) for way in (heads.predict, heads.predict_fast))
        for part in ("quality", "cost", "value"):
            assert getattr(quick, part) == pytest.approx(getattr(slow, part), abs=1e-12)


def test_predict_fast_sees_every_row():
    """What it keeps between two questions is thrown away by a row, a discount and a restore."""
    heads, other, x = heads_after(made_updates(30)), heads_after(made_updates(60)), made_features(1)
    said = [heads.predict_fast(x, arms=ARMS).quality]
    heads.learn(row_of(x, quality=1.0, arm=ARMS[1]))
    said.append(heads.predict_fast(x, arms=ARMS).quality)
    heads.discount(ARMS[0], rows=1.0)
    said.append(heads.predict_fast(x, arms=ARMS).quality)
    assert [a != b for a, b in zip(said[0], said[1], strict=True)] == [False, True, False]
    assert [a != b for a, b in zip(said[1], said[2], strict=True)] == [True, False, False]
    heads.restore(*other.state())
    assert heads.predict_fast(x, arms=ARMS) == other.predict_fast(x, arms=ARMS)


def test_quick_knows_no_arm_at_first():
    """Before any row all means are 0 and the width is the prior's of a question with |x|^2 = d."""
    heads = RidgeHeads(ridge=5.0, bias_ridge=2.0)
    for size in (SIZE, SIZE + 1):
        found = heads.predict_fast(made_features(1, size=size), arms=ARMS)
        assert found.quality == found.cost == found.value == (0.0,) * 3
        assert found.width == pytest.approx((0.5 * math.sqrt(1 / 2.0 + 1 / 5.0),) * 3, rel=1e-12)
    assert heads.predict_fast(np.ones(SIZE, dtype=np.float32), arms=ARMS).width == pytest.approx(
        heads.predict(np.ones(SIZE, dtype=np.float32), arms=ARMS).width, rel=1e-12
    )


@pytest.mark.parametrize("memory", [None, 70.0])
def test_leverage_is_the_running_mean(memory):
    """The mean of z^T P z, P before the row, over the first 50 rows; then every row counts a 50th, older ones less.

    Quick widths are noise * sqrt(that mean); P comes from matrix inverses of the explicit precision.
    """
    updates = made_updates(400, seed=8)
    heads = heads_after(updates, ridge=2.0, bias_ridge=0.5, memory=memory)
    for arm, width in zip(ARMS, heads.predict_fast(made_features(1), arms=ARMS).width, strict=True):
        rows = [update for update in updates if update.arm == arm]
        spreads = []
        for count in range(len(rows)):
            z = design(rows[count].features)
            spreads.append(z @ np.linalg.solve(faded(rows[:count], ridge=2.0, bias_ridge=0.5, memory=memory)[0], z))
        assert len(spreads) > 100
        weights = np.array([0.02 * 0.98 ** (len(spreads) - 1 - i) for i in range(len(spreads))])
        weights[:50] = 0.98 ** (len(spreads) - 50) / 50
        assert weights.sum() == pytest.approx(1.0)
        assert heads._leverage[arm] == pytest.approx(float(weights @ spreads), rel=1e-9)
        assert width == pytest.approx(heads.noise * math.sqrt(weights @ spreads), rel=1e-9)


# --- rows that fade --------------------------------------------------------------------------------------------------


def faded(rows, *, ridge, bias_ridge, memory, size=SIZE):
    """Precision (d+1, d+1) and moment (2, d+1) of one arm's rows, by the recursion that the module's text states."""
    kept = 1.0 if memory is None else 1.0 - 1.0 / memory
    prior = np.array([bias_ridge] + [ridge] * size)
    precision, moment = np.diag(prior), np.zeros((2, size + 1))
    for count, update in enumerate(rows):
        z = design(update.features)
        precision = kept * precision + np.outer(z, z)
        place = count % (size + 1)
        precision[place, place] += (1.0 - kept) * (size + 1) * prior[place]
        moment = kept * moment + np.outer((update.reward.quality, update.reward.cost), z)
    return precision, moment


@pytest.mark.parametrize(("memory", "size"), [(50.0, 24), (300.0, 24), (20_000.0, 24), (64.0, 48), (50.0, 3)])
def test_fading_is_the_recursion_of_the_precision(memory, size):
    """After 900 rows means and inverses of three arms equal linear solves of the explicit precision, to 1e-8."""
    updates = made_updates(900, seed=11, size=size)
    heads = heads_after(updates, ridge=3.0, bias_ridge=0.5, memory=memory)
    for arm in ARMS:
        rows = [update for update in updates if update.arm == arm]
        precision, moment = faded(rows, ridge=3.0, bias_ridge=0.5, memory=memory, size=size)
        assert np.abs(heads._mean[arm] - np.linalg.solve(precision, moment.T).T).max() < 1e-8
        assert np.abs(heads._inverse[arm] - np.linalg.inv(precision)).max() < 1e-8


def test_faded_mean_minimises_the_weighted_squares():
    """The mean is the least-squares solution of rows weighted by (1 - 1/m)^age, with the prior that was given back.

    By one least-squares solve of the weighted rows below the root of the prior: no recursion, no normal equations.
    """
    memory, size, updates = 80.0, 6, made_updates(500, arms=ARMS[:1], seed=12, size=6)
    kept, count = 1.0 - 1.0 / memory, 500
    back = np.zeros(size + 1)
    for i in range(size + 1):
        given_back = sum(kept ** (count - 1 - t) for t in range(i, count, size + 1))
        back[i] = (0.5 if i == 0 else 3.0) * (kept**count + (1.0 - kept) * (size + 1) * given_back)
    root = np.sqrt(kept ** (count - 1 - np.arange(count)))[:, None]  # (n, 1)
    z = np.array([design(update.features) for update in updates])
    y = np.array([(update.reward.quality, update.reward.cost) for update in updates])
    tall = np.concatenate([root * z, np.diag(np.sqrt(back))])
    wanted = np.linalg.lstsq(tall, np.concatenate([root * y, np.zeros((size + 1, 2))]), rcond=None)[0]
    heads = heads_after(updates, ridge=3.0, bias_ridge=0.5, memory=memory)
    assert np.abs(heads._mean[ARMS[0]] - wanted.T).max() < 1e-8


def test_long_memory_is_no_memory():
    """With a memory of 1e12 rows nothing is forgotten: the posterior is that of memory None, to 1e-8."""
    updates = made_updates(300)
    plain, long = heads_after(updates), heads_after(updates, memory=1e12)
    for arm in ARMS:
        assert np.abs(plain._mean[arm] - long._mean[arm]).max() < 1e-8
        assert np.abs(plain._inverse[arm] - long._inverse[arm]).max() < 1e-8


def test_inverse_stays_bounded_where_nothing_is_asked():
    """Over 50 memories of rows a coordinate that is never excited has its prior, in the closed form of a saw tooth.

    Just after its turn its precision is prior * (1 - k) n / (1 - k^n), k = 1 - 1/memory, n = d + 1, and k per row
    less until the next; the inverse stays symmetric, positive definite, and that of the explicit precision to 1e-9.
    """
    memory, size, prior = 60.0, 4, 3.0
    heads, rng, rows = RidgeHeads(ridge=prior, bias_ridge=0.5, memory=memory), np.random.default_rng(1), []
    for _ in range(3_000):
        x = rng.standard_normal(size)
        x[2] = 0.0  # coordinate 3 of z
        rows.append(row_of(x, quality=rng.random()))
        heads.learn(rows[-1])
    inverse, kept = heads._inverse[ARMS[0]], 1.0 - 1.0 / memory
    since = (3_000 - 1 - 3) % (size + 1)
    tooth = prior * (1.0 - kept) * (size + 1) / (1.0 - kept ** (size + 1)) * kept**since
    assert inverse[3, 3] == pytest.approx(1.0 / tooth, rel=1e-9)
    assert np.array_equal(inverse, inverse.T)
    assert np.linalg.eigvalsh(inverse)[0] > 0
    precision, _ = faded(rows, ridge=prior, bias_ridge=0.5, memory=memory, size=size)
    assert np.abs(inverse - np.linalg.inv(precision)).max() < 1e-9


def test_fading_follows_a_change():
    """An arm whose rewards turn is believed anew after a few memories of rows; without memory the old ones linger."""
    x = np.ones(SIZE)
    rows = [row_of(x, quality=0.9)] * 1000 + [row_of(x, quality=0.1)] * 400
    found = {
        m: heads_after(rows, memory=m).predict_fast(x.astype(np.float32), arms=ARMS[:1]).quality[0]
        for m in (None, 80.0)
    }
    assert found[None] == pytest.approx((1000 * 0.9 + 400 * 0.1) / 1400, abs=0.01)
    assert found[80.0] == pytest.approx(0.1, abs=0.02)


def test_noise_fades_too():
    """After noise of .4 comes noise of .1: with a memory of 100 rows that is what is found; else a mean of both."""
    rng = np.random.default_rng(3)
    rows = [
        row_of(rng.standard_normal(SIZE), quality=0.5 + (0.4 if i < 1000 else 0.1) * rng.standard_normal(), weight=0.0)
        for i in range(2000)
    ]
    assert heads_after(rows, memory=100.0).noise == pytest.approx(0.1, rel=0.15)
    assert heads_after(rows).noise == pytest.approx(math.sqrt((0.4**2 + 0.1**2) / 2), rel=0.05)


@pytest.mark.parametrize("memory", [0.0, 1.0, 49.9, -3.0, math.nan, math.inf])
def test_memory_that_rounding_would_not_survive_is_refused(memory):
    """Fewer than 50 rows, or no number, is a ConfigError that names the param."""
    with pytest.raises(ConfigError) as caught:
        make_policy("mba", params={"memory": memory})
    assert caught.value.field == "policy.params.memory"


# --- residuals and starting again -------------------------------------------------------------------------------------


def test_residual_is_the_standardised_miss():
    """(value - prediction) / (noise * sqrt(1 + z^T P z)), prediction, noise and P before the row, weight the row's."""
    updates = made_updates(200, seed=6)
    heads = heads_after(updates)
    parts = [solution(updates, arm, ridge=10.0, bias_ridge=1.0) for arm in ARMS]
    covariance = (np.array([[0.25, 0.0], [0.0, 0.0]]) + sum(part[2] for part in parts)) / 201
    x, price = made_features(9), np.array([1.0, -0.5])  # another weight than the .1 of the rows before
    inverse, mean, _ = parts[1]
    z = design(x)
    wanted = price @ (np.array([0.8, 3.0]) - mean @ z)
    wanted /= math.sqrt(price @ covariance @ price * (1.0 + z @ inverse @ z))
    found = heads.learn(row_of(x, quality=0.8, cost=3.0, weight=0.5, arm=ARMS[1]))
    assert found == pytest.approx(wanted, rel=1e-9)


def test_residual_is_standard_where_the_world_is_linear():
    """Where truths come from the prior and the noise is Gaussian, residuals have mean 0 and deviation 1, to 5 %."""
    rng, found = np.random.default_rng(5), []
    for world in range(20):
        weights = 0.4 * rng.standard_normal(SIZE + 1) / np.sqrt([1.0] + [4.0] * SIZE)
        heads = RidgeHeads(ridge=4.0, bias_ridge=1.0)
        for update in made_updates(250, arms=ARMS[:1], seed=200 + world):
            quality = float(weights @ design(update.features)) + 0.4 * rng.standard_normal()
            residual = heads.learn(replace(update, reward=made_reward(quality, weight=0.0)))
            if heads.age(ARMS[0]) > 50:  # the noise itself is known by then
                found.append(residual)
    assert len(found) == 4000
    assert np.mean(found) == pytest.approx(0.0, abs=0.05)
    assert np.std(found) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("memory", [None, 60.0])
def test_discounted_rows_count_as_few(memory):
    """Precision and moments are the prior's plus a share of the rows', solved by hand; other arms keep every bit."""
    heads = heads_after(made_updates(240), memory=memory)
    arm, size = ARMS[0], SIZE + 1
    before = {name: array.copy() for name, array in heads.state()[0].items()}
    count, leverage = heads.seen[arm], heads._leverage[arm]
    share = 20.0 / (heads.age(arm) if memory is None else min(heads.age(arm), memory))
    prior = np.diag(heads._precision(size))
    precision = share * np.linalg.inv(heads._inverse[arm]) + (1.0 - share) * prior
    expected = np.linalg.solve(precision, (share * heads._moment[arm]).T).T
    heads.discount(arm, rows=20.0)
    assert np.abs(heads._inverse[arm] - np.linalg.inv(precision)).max() < 1e-9
    assert np.abs(heads._mean[arm] - expected).max() < 1e-9
    assert np.array_equal(heads._inverse[arm], heads._inverse[arm].T)
    assert (heads.age(arm), heads.seen[arm]) == (0, count)
    assert leverage < heads._leverage[arm] <= 1.0 / heads.bias_ridge + 1.0 / heads.ridge
    after = heads.state()[0]
    assert all(np.array_equal(after[name], before[name]) for name in after if not name.endswith(arm))


def test_few_rows_are_not_discounted():
    """Where there are fewer rows than they may count as, nothing but the age changes."""
    heads = heads_after(made_updates(30))
    mean = heads._mean[ARMS[0]].copy()
    heads.discount(ARMS[0], rows=100.0)
    assert np.abs(heads._mean[ARMS[0]] - mean).max() < 1e-12
    assert heads.age(ARMS[0]) == 0


def test_a_price_of_its_own_hides_no_cost():
    """What a row at 500 times the usual weight costs is learned whole; at the usual weight it is cut as before."""
    zero = np.zeros(SIZE)
    usual = row_of(zero, cost=1.0, weight=0.1)
    own = row_of(zero, cost=1.0, weight=50.0)
    own = replace(own, query=replace(own.query, cost_weight=50.0))

    def cost_after(rows):
        return heads_after([usual, *rows]).predict(zero.astype(np.float32), arms=ARMS[:1]).cost[0]

    assert cost_after([own] * 30) == cost_after([usual] * 30)
    assert cost_after([row_of(zero, cost=1e6, weight=0.1)] * 30) < 20.0
