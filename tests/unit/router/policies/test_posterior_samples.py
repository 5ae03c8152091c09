"""Samples of the posterior: against linear solves of explicit sums, with signs made again from the hash."""

import hashlib
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from ragbandit.shared.types import ArmName
from ragbandit.testing.policies import ARMS, made_features, made_updates
from tests.support.posteriors import averaged, separate

SIZE = 6
RIDGE, BIAS = 3.0, 0.5


def heads_of(*, memory=None, pairs=32):
    return averaged(ridge=RIDGE, bias_ridge=BIAS, memory=memory, pairs=pairs, quality=0.5)


def learned(heads, updates, *, restarts=()):
    """The heads after these rows; after those whose place is in `restarts` the arm is started again."""
    for place, update in enumerate(updates):
        heads.learn(update)
        if place in restarts:
            heads.restart(update.arm)
    return heads


def rows_of(count, *, arms=ARMS, weights=(1.0,), **more):
    """Rows with sample weights drawn from `weights`."""
    rng = np.random.default_rng(4)
    return [
        replace(update, reward=replace(update.reward, sample_weight=float(rng.choice(weights))))
        for update in made_updates(count, arms=arms, size=SIZE, **more)
    ]


def signs(arm, kind, number, count):
    """One sign per sample or entry: the bits of SHAKE-128 of kind, number and arm, the first bit first; 1 is +1."""
    stream = hashlib.shake_128(f"{kind}\0{number}\0{arm}".encode()).digest(-(-count // 8))
    bits = "".join(f"{byte:08b}" for byte in stream)
    return np.array([1.0 if bit == "1" else -1.0 for bit in bits[:count]])


def prior_samples(arm, count):
    """Signs over the roots of the precisions, the intercept's times upper normal quantiles in the order of a hash."""
    samples = signs(arm, "prior", 0, count * (SIZE + 1)).reshape(count, SIZE + 1) / math.sqrt(RIDGE)
    positive = samples[:, 0] > 0.0
    quantiles = np.array([NormalDist().inv_cdf(0.5 + (sample + 0.5) / (2 * count)) for sample in range(count)])
    digests = [hashlib.blake2b(f"intercept\0{sample}\0{arm}".encode()).digest() for sample in range(count)]
    rank = np.argsort(np.argsort(np.array(digests, dtype=object)))
    samples[:, 0] = np.where(positive, 1.0, -1.0) * (quantiles / np.sqrt((quantiles**2).mean()))[rank] / math.sqrt(BIAS)
    return samples


def explicit(updates, arm, *, memory=None, samples=32, restarts=()):
    """(means of quality and cost, deviations in units of the noise, covariance in them) of an arm, by linear solves.

    Every 32 rows, or a sixteenth of the memory, older and newer rows alike fade by what was learned since the last
    time; a restart fades at once.
    """
    prior = np.diag([BIAS] + [RIDGE] * SIZE)
    gram, noise, moment = np.zeros((SIZE + 1, SIZE + 1)), np.zeros((SIZE + 1, samples)), np.zeros((SIZE + 1, 2))
    first = next(update.reward.cost for update in updates if update.arm == arm)
    block = 32 if memory is None else min(32, int(memory) // 16)
    total, mass, fresh = 0, 0.0, 0.0
    for place, update in enumerate(updates):
        if update.arm != arm:
            continue
        z = np.concatenate([[1.0], update.features.astype(float) / math.sqrt(SIZE)])
        weight = update.reward.sample_weight
        gram += weight * np.outer(z, z)
        moment += weight * np.outer(z, (update.reward.quality - 0.5, update.reward.cost - first))
        noise += math.sqrt(weight) * np.outer(z, signs(arm, "row", total, samples))
        total, mass, fresh, share = total + 1, mass + weight, fresh + weight, 1.0
        if total % block == 0:
            share, fresh = 1.0 if memory is None else math.exp(-fresh / memory), 0.0
        if place in restarts:
            share, mass = share * min(1.0, 3.0 / (mass if memory is None else min(mass, memory))), 0.0
        gram, moment, noise = share * gram, share * moment, math.sqrt(share) * noise
    covariance = np.linalg.inv(prior + gram)
    noise += prior @ prior_samples(arm, samples).T
    return covariance @ moment + [[0.5, first]] * np.eye(SIZE + 1)[:, :1], covariance @ noise, covariance


@pytest.mark.parametrize(
    ("rows", "weights", "memory", "restarts"),
    [
        (1, (1.0,), None, ()),
        (4, (1.0,), None, ()),
        (130, (1.0,), None, ()),
        (96, (0.3, 1.0, 2.5), None, ()),
        (130, (1.0,), 400.0, ()),
        (130, (0.3, 2.5), 400.0, (40, 41, 100)),
        (90, (1.0,), None, (60,)),
    ],
)
def test_samples_are_explicit_sums(rows, weights, memory, restarts):
    """At any row, in or at the end of a block, means and samples are those of the sums over all rows before it."""
    updates = rows_of(rows, weights=weights)
    heads = learned(heads_of(memory=memory), updates, restarts=restarts)
    means, deviations = heads.sample(made_features(9, size=SIZE), arms=ARMS, weight=0.1)
    z = np.concatenate([[1.0], made_features(9, size=SIZE).astype(float) / math.sqrt(SIZE)])
    usual = np.mean([next(u.reward.cost for u in updates if u.arm == arm) for arm in heads.seen])
    for at, arm in enumerate(ARMS):
        if arm not in heads.seen:
            wanted, samples = (0.5, usual), prior_samples(arm, 32) @ z
        else:
            weighed, samples, _ = explicit(updates, arm, memory=memory, restarts=restarts)
            wanted, samples = z @ weighed, z @ samples
        assert (means.quality[at], means.cost[at]) == pytest.approx(tuple(wanted), abs=1e-9)
        assert deviations[at] == pytest.approx(
            heads.noise_at(heads.weight) * np.concatenate([samples, -samples]), abs=1e-9
        )
    assert means.value == pytest.approx(means.quality - 0.1 * means.cost, abs=1e-12)


@pytest.mark.parametrize(("memory", "restarts"), [(None, ()), (400.0, (70,))], ids=["plain", "fading, restarted"])
def test_samples_have_the_posteriors_covariance(memory, restarts):
    """Over 30 arms with the same rows, 256 pairs each, the deviations have mean 0 and the covariance of the weights.

    Whatever was faded: what its prior and its signs lost came back.
    """
    updates = [replace(u, arm=ARMS[0]) for u in rows_of(100, weights=(0.5, 1.0, 2.0))]
    drawn = []
    for number in range(30):
        arm = ArmName(f"arm {number}")
        named = [replace(update, arm=arm) for update in updates]
        heads = learned(heads_of(memory=memory, pairs=256), named, restarts=restarts)
        drawn.append(separate(heads, arm).deviations)
    found, covariance = np.concatenate(drawn), explicit(updates, ARMS[0], memory=memory, restarts=restarts)[2]
    root = np.sqrt(np.diag(covariance))
    assert np.abs(found.mean(axis=0) / root).max() < 0.06  # its standard error is 1 / sqrt(7680)
    assert np.abs(found.T @ found / len(found) / np.outer(root, root) - covariance / np.outer(root, root)).max() < 0.06


def test_an_arm_that_nobody_tried_has_the_prior():
    """An arm without rows has the prior's width, and the value .5 minus the mean first cost of the other arms."""
    heads, nothing = learned(heads_of(pairs=32), rows_of(60, arms=ARMS[:2])), np.zeros(SIZE, dtype=np.float32)
    means, deviations = heads.sample(nothing, arms=[ArmName("newcomer")], weight=0.1)
    first = [next(u.reward.cost for u in rows_of(60, arms=ARMS[:2]) if u.arm == arm) for arm in ARMS[:2]]
    assert (means.quality[0], means.cost[0]) == pytest.approx((0.5, np.mean(first)), abs=1e-12)
    assert np.sqrt((deviations[0] ** 2).mean()) == pytest.approx(
        heads.noise_at(heads.weight) / math.sqrt(BIAS), rel=1e-6
    )
    z = np.concatenate([[1.0], made_features(9, size=SIZE).astype(float) / math.sqrt(SIZE)])
    many = [heads.sample(made_features(9, size=SIZE), arms=[ArmName(f"new {n}")], weight=0.1)[1] for n in range(50)]
    wanted = heads.noise_at(heads.weight) * math.sqrt(float((z * z / ([BIAS] + [RIDGE] * SIZE)).sum()))
    assert np.sqrt((np.concatenate(many) ** 2).mean()) == pytest.approx(wanted, rel=0.03)


def state_of(heads):
    arrays, facts = heads.state()
    return {name: array.tobytes() for name, array in arrays.items()}, facts


@pytest.mark.parametrize("memory", [None, 400.0])
def test_asking_changes_nothing(memory):
    """Asked after every row, or snapshotted and read back, or never: the state and the samples have the same bits."""
    updates = rows_of(150, weights=(0.3, 1.0))
    asked, bulk, cut = heads_of(memory=memory), learned(heads_of(memory=memory), updates), heads_of(memory=memory)
    for place, update in enumerate(updates):
        asked.learn(update)
        asked.sample(update.features, arms=ARMS[: 1 + place % 3], weight=0.1)
        cut.learn(update)
        if place % 37 == 0:
            saved, cut = cut.state(), heads_of(memory=memory)
            cut.restore(*saved)
            assert state_of(cut) == state_of(asked)
    assert state_of(asked) == state_of(bulk) == state_of(cut)
    said = [heads.sample(made_features(9, size=SIZE), arms=ARMS, weight=0.1) for heads in (asked, bulk, cut)]
    for means, deviations in said:
        assert deviations.tobytes() == said[0][1].tobytes()
        assert means.value.tobytes() == said[0][0].value.tobytes()


def test_order_of_arms_does_not_matter():
    """An arm's means and samples do not depend on its position or on the other offered arms."""
    heads, x = learned(heads_of(), rows_of(70)), made_features(9, size=SIZE)
    arms = (*ARMS, ArmName("newcomer"))
    means, deviations = heads.sample(x, arms=arms, weight=0.1)
    for other in ((arms[3], arms[1], arms[0]), arms[2:], arms[:1], arms[::-1]):
        turned, samples = heads.sample(x, arms=other, weight=0.1)
        places = [arms.index(arm) for arm in other]
        assert turned.value == pytest.approx(means.value[places], abs=1e-12)
        assert samples == pytest.approx(deviations[places], abs=1e-12)
