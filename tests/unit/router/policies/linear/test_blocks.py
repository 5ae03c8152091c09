"""Ridge heads in blocks: the same regression as row by row, a function of the rows alone, exact on every processor."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.linear.blocks import BlockHeads, _gram, _rounded
from ragbandit.router.policies.linear.inversion import inverse_of
from ragbandit.router.policies.linear.ridge import RidgeHeads
from ragbandit.shared.errors import PolicyFault
from ragbandit.testing.policies import sha_of
from ragbandit.testing.policy_examples import ARMS, made_features, made_query, made_reward, made_updates

UNIT = 2.0**-14


def on_grid(updates):
    """The updates with features that rounding leaves as they are."""
    return [replace(u, features=(np.rint(u.features / UNIT) * UNIT).astype(np.float32)) for u in updates]


def learned(heads, updates):
    for update in updates:
        heads.learn(update)
        heads.finish(update.arm)
    return heads


@pytest.mark.parametrize("rows", [1, 5, 40, 211])
def test_means_are_those_of_row_by_row(rows):
    """After any number of rows, in or at the end of a block, means and widths are the exact ridge solution."""
    updates = on_grid(made_updates(rows))
    one = learned(RidgeHeads(ridge=3.0, bias_ridge=0.5), updates)
    other = learned(BlockHeads(ridge=3.0, bias_ridge=0.5, block=64), updates)
    for seed in range(5):
        expected, found = (heads.predict(made_features(seed), arms=ARMS) for heads in (one, other))
        assert found.quality == pytest.approx(expected.quality, abs=1e-9)
        assert found.cost == pytest.approx(expected.cost, abs=1e-9)
        ratio = one.noise / other.noise
        assert [width * ratio for width in found.width] == pytest.approx(expected.width, abs=1e-9)


def test_noise_is_found():
    """The noise of rewards around a linear truth is estimated, as row by row, within a few percent."""
    rng, truth = np.random.default_rng(0), np.random.default_rng(1).standard_normal(24) / 24
    updates = [
        replace(u, reward=made_reward(0.5 + float(u.features @ truth) + 0.2 * float(rng.standard_normal())))
        for u in made_updates(3000)
    ]
    heads = learned(BlockHeads(ridge=3.0, bias_ridge=0.5, memory=20_000.0, block=256), updates)
    assert heads.noise == pytest.approx(0.2, rel=0.05)


def test_leverage_is_that_of_new_rows():
    """The width that decides in microseconds is the mean width of questions that the arm has not learned."""
    heads = learned(BlockHeads(ridge=5.0, bias_ridge=1.0, memory=20_000.0, block=256), made_updates(1500))
    for arm in ARMS:
        exact = np.mean([heads.predict(made_features(10_000 + n), arms=[arm]).width[0] for n in range(200)])
        assert heads.predict_fast(made_features(0), arms=[arm]).width[0] == pytest.approx(exact, rel=0.1)


def test_asking_changes_nothing():
    """The state after n rows has the same bits, whether somebody asked after every row or nobody did."""
    updates = made_updates(150)
    asked, bulk = (make_policy("mba", params={"block": 32}) for _ in range(2))
    for update in updates:
        asked.learn(update)
        sha_of(asked)
        bulk.learn(update)
    assert sha_of(asked) == sha_of(bulk)


@pytest.mark.parametrize("counts", [[1.0], [0.3, 1.0, 2.5]], ids=["alike", "weighted"])
def test_gram_is_exact(counts):
    """Z^T W Z has the same bits for every order of the rows: no sum of it was rounded before it was scaled."""
    heads = BlockHeads(ridge=1.0, bias_ridge=1.0, block=512)
    block = heads._opened(heads._new(65), rows=512)
    rng = np.random.default_rng(3)
    block.units[:] = [_rounded((255.0 * rng.uniform(-1, 1, 64)).astype(np.float32)) for _ in range(512)]
    block.counts[:] = rng.choice(counts, 512)
    block.rows = 512
    whole, order = _gram(block), rng.permutation(512)
    block.units[:], block.counts[:] = block.units[order], block.counts[order]
    assert np.array_equal(_gram(block), whole)
    first, second = (block.units[:, place].astype(object).astype(int) for place in (0, 1))
    products = sum(count * (first * second)[block.counts == count].sum() for count in counts)
    assert whole[1, 2] == products * ((UNIT / 8.0) * (UNIT / 8.0))


@pytest.mark.parametrize("memory", [None, 5000.0])
def test_weighted_blocks_are_the_weighted_regression(memory):
    """With rows that count as 0 to 2.5 the means in blocks are those row by row, to 1e-9 where nothing fades."""
    rng, updates = np.random.default_rng(8), made_updates(500)
    updates = [
        replace(update, reward=replace(update.reward, sample_weight=float(rng.choice([0.0, 0.3, 1.0, 2.5]))))
        for update in updates
    ]
    rounded = [
        replace(update, features=(UNIT * np.rint(update.features / UNIT)).astype(np.float32)) for update in updates
    ]
    blocks = BlockHeads(ridge=3.0, bias_ridge=0.5, memory=memory, block=64)
    rows = RidgeHeads(ridge=3.0, bias_ridge=0.5, memory=memory)
    for update in rounded:
        blocks.learn(update)
        blocks.finish(update.arm)
        rows.learn(update)
    found, wanted = (heads.predict(made_features(7), arms=ARMS) for heads in (blocks, rows))
    close = {"abs": 1e-9} if memory is None else {"abs": 0.01}
    assert found.quality == pytest.approx(wanted.quality, **close)
    assert found.cost == pytest.approx(wanted.cost, **close)
    assert found.width == pytest.approx(wanted.width, rel=0.1)


@pytest.mark.parametrize("size", [1, 2, 23, 24, 25, 130])
def test_inverse(size):
    """The inverse is the inverse, symmetric to the last bit."""
    rows = np.random.default_rng(size).standard_normal((2 * size, size))
    matrix = rows.T @ rows + np.eye(size)
    inverse = inverse_of(matrix)
    assert np.array_equal(inverse, inverse.T)
    assert np.abs(inverse @ matrix - np.eye(size)).max() < 1e-9


@pytest.mark.parametrize("bad", [256.0, -1e9, float("inf"), float("nan")])
def test_features_beyond_the_grid_are_refused(bad):
    """A feature that the grid cannot hold is a PolicyFault that names the way out, and leaves no trace."""
    policy = make_policy("mba", params={"block": 8})
    first, second = made_updates(2)
    policy.learn(first)
    before = sha_of(policy)
    features = second.features.copy()
    features[3] = bad
    with pytest.raises(PolicyFault, match="a feature is not finite, or beyond 250; use an encoder"):
        policy.learn(replace(second, features=features))
    assert sha_of(policy) == before


def test_an_alarm_ends_the_block():
    """When an arm's rewards change an alarm ends its block at once, and the arm soon has its new mean."""
    policy = make_policy("mba", params={"block": 256, "epsilon_min": 0.0})
    arms = ARMS[:1]
    for number, update in enumerate(made_updates(900, arms=arms)):
        policy.learn(replace(update, reward=made_reward((0.8 if number < 800 else 0.0) + 0.2 * (number % 2))))
    assert policy.alarms == {ARMS[0]: 1}
    assert policy._heads.age(ARMS[0]) < 100
    output = pmf_of_one(policy, made_query(1), features=made_features(1), arms=arms)
    assert output.facts["quality"][0] == pytest.approx(0.1, abs=0.1)


def test_blocks_are_short_beside_the_memory():
    """Rows of a block count alike, so a block has at most 1/16 of the rows that a policy remembers."""
    for memory, rows in ((None, 256), (20_000.0, 256), (1000.0, 32), (50.0, 2)):
        assert BlockHeads(ridge=1.0, bias_ridge=1.0, memory=memory, block=256).block == rows
