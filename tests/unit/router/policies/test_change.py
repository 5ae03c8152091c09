"""The test for changes that nobody declares: its wealths against their definition, false alarms, and what it finds."""

import math

import numpy as np
import pytest

from ragbandit.router.policies.change import ChangeTest
from ragbandit.shared.types import ArmName
from tests.support.cases import every_case

ARM = ArmName("single_step")


def rows(kind, count, *, seed=0):
    """(residual, prediction) of an arm whose predictions are right: of 0 or 1 with a chance, or Gaussian."""
    rng = np.random.default_rng([seed, 5])
    if kind == "gauss":
        return list(zip(rng.standard_normal(count).tolist(), rng.normal(0.5, 0.15, count).tolist(), strict=True))
    chance = np.clip(kind + 0.3 * kind * (1 - kind) * rng.standard_normal(count), 0.001, 0.999)
    right = rng.random(count) < chance
    return list(zip(((right - chance) / 0.45).tolist(), chance.tolist(), strict=True))


def first_alarm(test, stream) -> int | None:
    """The row at which it says for the first time that the arm has changed."""
    found = (n for n, (r, p) in enumerate(stream, start=1) if test.learn(ARM, r, predicted=p, rows=1.0))
    return next(found, None)


def wealth_of(stream) -> float:
    """The mean wealth by its definition, of a stream of at most 200 rows of weight 1."""
    xs = []
    for n, (residual, prediction) in enumerate(stream):
        variance, mean, spread = 1.0, 0.0, 0.0  # before this row
        for count, (r, p) in enumerate(stream[:n], start=1):
            variance += (r * r - variance) / (count + 10)
            apart = p - mean
            mean += apart / count
            spread += (apart * apart - spread) / count
        r = residual / math.sqrt(max(variance, 0.25))
        u = (prediction - mean) / math.sqrt(spread) if spread else 0.0
        product = np.clip(r, -4 / 1.5, 4 / 1.5) * np.clip(u, -1.5, 1.5)
        xs.append(np.clip([r, -r, product, -product], -2, 4))
    xs, total = np.array(xs), 0.0
    for which, bet in ((0, 0.1), (0, 0.4), (1, 0.1), (1, 0.4), (2, 0.2), (3, 0.2)):
        factors = [
            max(0.02, 1.0 + bet * (xs[n, which] - max(xs[50:n, which].mean(), 0.0) - 0.5 / math.sqrt(n - 49)))
            for n in range(100, len(xs))
        ]
        total += sum(math.prod(factors[start:]) for start in range(len(factors)))
    return total / 6


def test_wealths_are_all_bets_begun_so_far():
    """Every row after the 100th began a bet of 1 in each direction; the alarm is raised where their mean is N."""
    stream = [*rows(0.5, 120, seed=3), *((r + 1.0, p) for r, p in rows(0.5, 12, seed=4))]
    wealths = [wealth_of(stream[:count]) for count in range(101, len(stream) + 1)]
    most, place = max(wealths), 101 + wealths.index(max(wealths))
    assert most > 10.0
    assert first_alarm(ChangeTest(alarm=most * (1 - 1e-9)), stream) == place
    assert first_alarm(ChangeTest(alarm=most * (1 + 1e-9)), stream) is None


def test_an_unchanged_arm_raises_no_alarm():
    """Whatever the distribution of its rewards: fewer than one in N / 5 rows, with N so small that it can be seen."""
    with every_case() as case:
        for kind in ("gauss", 0.03, 0.1, 0.5, 0.9, 0.98):
            with case(kind):
                test, alarms = ChangeTest(alarm=400.0), 0
                for residual, prediction in rows(kind, 8000):
                    alarms += test.learn(ARM, residual, predicted=prediction, rows=1.0)
                assert alarms <= 20


def test_changes_are_found():
    """A shift of the mean, a lower mean of a sure arm, and a ranking that is turned round while the mean stays."""
    turned = [(r - 2 * (p - 0.5) / 0.45, p) for r, p in rows("gauss", 400, seed=2)]
    shifted = [(r + 0.6, p) for r, p in rows("gauss", 400, seed=2)]
    sure = [(r - 0.5, p) for r, p in rows(0.9, 400, seed=2)]
    with every_case() as case:
        for name, before, after, within in (
            ("turned", "gauss", turned, 200),
            ("shifted", "gauss", shifted, 150),
            ("sure", 0.9, sure, 60),
        ):
            with case(name):
                test = ChangeTest(alarm=100_000.0)
                assert first_alarm(test, rows(before, 1000)) is None
                assert 10 < first_alarm(test, after) <= within


def test_rows_that_count_for_little():
    """A row is bet on by the root of what it counts as, a row of 2 as one of 1; another arm's rows change nothing."""
    shifted = [(r + 1.0, p) for r, p in rows("gauss", 300, seed=2)]
    delays = []
    for weight in (2.0, 1.0, 0.25):
        test = ChangeTest(alarm=100_000.0)
        assert first_alarm(test, rows("gauss", 300)) is None
        known = dict(test.state())
        test.learn(ArmName("other"), 50.0, predicted=0.0, rows=1.0)
        assert test.state()[ARM] == known[ARM]
        delays.append(next(n for n, (r, p) in enumerate(shifted) if test.learn(ARM, r, predicted=p, rows=weight)))
    assert delays[0] == delays[1] < delays[2]


def test_it_is_within_bounds_and_begins_anew():
    """Wild rows do not make infinite numbers; after an alarm and a restart the arm is watched as one never seen."""
    test = ChangeTest(alarm=1e12)
    for _ in range(3000):
        test.learn(ARM, 1e200, predicted=-1e100, rows=1.0)
        test.learn(ARM, -1e-3, predicted=1e100, rows=1.0)
    assert all(math.isfinite(number) for number in test.state()[ARM])
    test.restart(ARM)
    assert test.state() == {}
    with pytest.raises(ValueError, match="bets"):
        test.restore({ARM: [1, 1.0, 0.0, 0.0, *[0.0] * 9]})
