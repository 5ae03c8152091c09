"""Exact sums: the same bits in any order, and the true sum rounded once."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ragbandit.router.offline.estimation import exact_sums
from ragbandit.router.offline.estimation.diagnostics import ArmTally, WeightTally
from ragbandit.router.offline.estimation.exact_sums import ExactProducts, ExactSums, WholeSums, digits
from ragbandit.router.offline.estimation.moments import Moments

#: sizes that plain sums lose: 1e16 + 1 - 1e16 is 0; what is below 2^-300 counts as nothing
NUMBERS = st.floats(-1e20, 1e20).map(lambda x: x if abs(x) > 1e-60 else 0.0) | st.sampled_from(
    [1e16, -1e16, 1.0, 0.1, 1e-30]
)
COLUMNS = arrays(np.float64, st.tuples(st.just(2), st.integers(1, 30)), elements=NUMBERS)


@given(COLUMNS)
def test_a_sum_is_rounded_once(columns):
    """The sum is that of math.fsum."""
    assert ExactSums.of(*columns).values.tolist() == [math.fsum(column) for column in columns]


@given(COLUMNS)
def test_moments_are_rounded_once(columns):
    """Mean and scatter are those of fractions, to the last bit."""
    found = ExactProducts.of(*columns)
    rows = [[Fraction(float(value)) for value in column] for column in columns]
    means = [sum(row) / len(row) for row in rows]
    assert found.mean.tolist() == [float(mean) for mean in means]
    for i, j in ((0, 0), (0, 1), (1, 1)):
        exact = sum((a - means[i]) * (b - means[j]) for a, b in zip(rows[i], rows[j], strict=True))
        assert found.scatter[i, j] == float(exact)


@given(COLUMNS, st.randoms(use_true_random=False), st.integers(0, 30))
def test_cut_and_order_do_not_matter(columns, random, cut):
    """Moments of two parts in any order, merged, have the bits of the whole."""
    order = list(range(columns.shape[1]))
    random.shuffle(order)
    first, second = columns[:, order[:cut]], columns[:, order[cut:]]
    merged, whole = Moments.exactly(*second).merged(Moments.exactly(*first)), Moments.exactly(*columns)
    assert merged.rows == whole.rows
    assert np.array_equal(merged.mean, whole.mean)
    assert np.array_equal(merged.scatter, whole.scatter)


@pytest.mark.parametrize("size", [1e-62, 1e-75, 1e-88, 1e-95])
def test_tiny_numbers_have_the_same_digits_beside_larger_ones(size):
    """Where the digits of tiny numbers end does not depend on the rows that are added with them."""
    random = np.random.default_rng(0)
    tiny, larger = random.random(100) * size, random.random(100) * size * 1e7
    for sums in (ExactSums.of, ExactProducts.of):
        whole = sums(np.concatenate([tiny, larger]))
        parts = sums(tiny).merged(sums(larger))
        for name in ("units", "sums", "products"):
            assert np.array_equal(getattr(parts, name, ()), getattr(whole, name, ()))


def test_a_sum_beyond_float64_is_infinite():
    """Sums and products that float64 cannot hold are infinite, as those of floats are."""
    assert ExactSums.of(np.full(3, -1e308), np.ones(3)).values.tolist() == [-math.inf, 3.0]
    products = ExactProducts.of(np.array([1e200, 1.0]))
    assert (products.mean.tolist(), products.scatter.tolist()) == ([5e199], [[math.inf]])


def test_a_constant_column_has_no_scatter():
    """The scatter of equal numbers is 0, not what rounding leaves of it."""
    assert Moments.exactly(np.full(1000, 0.1), np.full(1000, 7e7)).scatter.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@given(arrays(np.float64, 20, elements=NUMBERS))
def test_aligned_digits_are_a_number_s_own(values):
    """With aligned exponents a number has the same digits alone and beside others; together they are the number."""
    together = dict(digits(values, bits=19, aligned=True))
    for place, value in enumerate(values):
        alone = {exponent: found[0] for exponent, found in digits(values[[place]], bits=19, aligned=True)}
        assert {e: found[place] for e, found in together.items() if found[place]} == {
            e: d for e, d in alone.items() if d
        }
        total = sum(Fraction(float(digit)) * Fraction(2) ** exponent for exponent, digit in alone.items())
        assert abs(total - Fraction(float(value))) < Fraction(2) ** -299


def test_what_is_not_finite_is_refused_or_nan():
    """Infinite terms raise in sums, and are NaN in moments, also after a merge."""
    with pytest.raises(ValueError, match="not finite"):
        ExactSums.of(np.array([1.0, np.inf]))
    assert np.isnan(Moments.exactly(np.array([np.nan])).merged(Moments.exactly(np.ones(3))).mean).all()


def test_carries_change_nothing(monkeypatch):
    """Sums of 64 bits that were carried, at whatever rows, have the value of those that were not."""
    wholes = np.random.default_rng(0).integers(-(2**42), 2**42, (40, 3)).astype(np.float64)

    def summed(rows):
        monkeypatch.setattr(exact_sums, "_MOST_ROWS", rows)
        found = WholeSums(3)
        for row in wholes:
            found.count(1)
            found.add(-7, row)
        return found

    plain = summed(100)
    assert plain.value.tolist() == [math.fsum(column) * 2.0**-7 for column in wholes.T]
    for rows in (1, 3, 20):
        other = summed(rows)
        assert np.array_equal(other.value, plain.value)
        other.absorb(plain)
        assert np.array_equal(other.value, 2.0 * plain.value)


def test_tallies_merge(make_log):
    """Tallies of parts in another order, merged, have every bit of that of the whole."""
    log, candidate = make_log(90)
    parts = [np.arange(40, 90), np.arange(40)]
    weight = candidate[np.arange(90), log.action] / log.propensity
    whole, arms = WeightTally(clip=2.0), ArmTally()
    whole.add(log, candidate=candidate, weight=weight)
    arms.add(log)
    tallies, draws = [], []
    for rows in parts:
        tallies.append(WeightTally(clip=2.0))
        tallies[-1].add(log.part(rows), candidate=candidate[rows], weight=weight[rows])
        draws.append(ArmTally())
        draws[-1].add(log.part(rows))
    merged, drawn = tallies[0].merged(tallies[1]), draws[0].merged(draws[1])
    assert merged.sums == whole.sums
    assert (merged.rows, merged.largest, merged.clipped) == (whole.rows, whole.largest, whole.clipped)
    assert np.array_equal(merged.counts, whole.counts)
    assert (drawn.arm_sums, drawn.surplus_sums, drawn.rows) == (arms.arm_sums, arms.surplus_sums, arms.rows)


@pytest.fixture
def make_log():
    """A log in memory and a candidate's probabilities."""
    from ragbandit.router.offline.replay import memory_log
    from tests.support.logs.replay_logs import lived_rows

    def make(rows):
        log = memory_log(lived_rows(rows)).log
        return log, np.random.default_rng(1).dirichlet(np.ones(3), rows)

    return make
