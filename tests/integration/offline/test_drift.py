"""Two arms exchange what they are worth half-way: `mba` and `vw` follow, by the code that serves and learns live."""

import functools

import numpy as np
import pytest

from benchmarks.drift import Lived, Made, exchanged, life

WORLD = Made(count=3000, size=32)
MIDDLE = 1500
SEEDS = range(2)
#: decisions after the exchange by which a policy must be back, and over which its level is then taken
BACK_BY, LEVEL = 1000, 500


@functools.cache
def lived(policy: str, seed: int, *, start: int = MIDDLE, alarm: float | None = None) -> Lived:
    """A life in which the arms are exchanged from row `start` on; 0 makes the reference."""
    stream = WORLD.stream(seed)
    table = exchanged(stream.table, pair=stream.pair, start=start)
    params = {} if alarm is None else {"alarm": alarm}
    return life(table, features=stream.features, policy=policy, params=params, seed=seed)


def missing(policy: str, **more: float) -> float:
    """Share of the reference level that is missing once the policy should be back, over all seeds."""
    late = slice(MIDDLE + BACK_BY, MIDDLE + BACK_BY + LEVEL)
    ours = np.mean([lived(policy, seed, **more).worth[late] for seed in SEEDS])
    return float(1 - ours / np.mean([lived(policy, seed, start=0).worth[late] for seed in SEEDS]))


def dropped(policy: str) -> float:
    """Share of the reference level that is missing where nothing more is learned after the exchange."""
    reference = np.mean([lived(policy, seed, start=0).worth[MIDDLE:] for seed in SEEDS])
    return float(1 - np.mean([lived(policy, seed).frozen for seed in SEEDS]) / reference)


def test_exchange():
    """Two arms' quality and steps change places from the given row on; the third arm and the rows before stay."""
    stream = Made(count=10).stream(0)
    one, other = stream.pair
    (third,) = set(stream.table.arms) - {one, other}
    turned = exchanged(stream.table, pair=stream.pair, start=4)
    assert turned.rows[:4] == stream.table.rows[:4]
    for was, now in zip(stream.table.rows[4:], turned.rows[4:], strict=True):
        assert (now.correct[one], now.steps[one]) == (was.correct[other], was.steps[other])
        assert (now.correct[other], now.steps[other]) == (was.correct[one], was.steps[one])
        assert (now.correct[third], now.steps[third]) == (was.correct[third], was.steps[third])
    assert exchanged(turned, pair=stream.pair, start=4) == stream.table


def test_exchange_is_of_the_best_and_the_worst():
    """In the made world the arms of the highest and of the lowest mean reward are exchanged."""
    assert all(Made(count=2000).stream(seed).pair == ("arm_1", "arm_0") for seed in range(5))


@pytest.mark.parametrize("policy", ["mba", "vw", "linucb"])
def test_same_seed_same_life(policy):
    """A life is a function of the stream and the seed, to the last bit."""
    stream = Made(count=300).stream(1)
    first, second = (life(stream.table, features=stream.features, policy=policy, params={}, seed=1) for _ in range(2))
    assert np.array_equal(first.worth, second.worth)
    assert first.frozen == second.frozen


@pytest.mark.parametrize("policy", ["mba", "vw"])
@pytest.mark.slow
def test_comes_back(policy):
    """The exchange costs more than 10 % of the reference level; 1,000 decisions later less than that is missing."""
    assert dropped(policy) > 0.1
    assert missing(policy) < 0.1


@pytest.mark.slow
def test_without_forgetting():
    """A policy that weighs all rows alike (linucb) needs longer: it misses more than twice what mba misses by then."""
    assert missing("linucb") > 2 * missing("mba")


@pytest.mark.slow
def test_it_is_the_alarm():
    """With its alarm out of reach mba needs longer too: its memory alone is too long for a stream like this."""
    assert missing("mba", alarm=1e18) > 2 * missing("mba")


@pytest.mark.parametrize("seed", SEEDS)
def test_alarm(seed):
    """The first alarm comes within 300 decisions of the exchange and none before it; where no arm changes, none."""
    assert MIDDLE <= lived("mba", seed).alarms[0] < MIDDLE + 300
    assert lived("mba", seed, start=0).alarms == ()
