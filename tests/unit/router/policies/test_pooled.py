"""Partial pooling: the arms' means against linear solves, what an arm without rows is expected to be, snapshots."""

import numpy as np
import pytest

from ragbandit.router.policies.pooled import NARROW, PooledHeads
from ragbandit.router.policies.posterior import Row
from ragbandit.router.policies.surrogates import PLAIN, Scale

ARMS = ("a", "b", "c")
RIDGE, BIAS, SIZE = 2.0, 0.5, 5
PRECISION = np.array([BIAS] + [RIDGE] * (SIZE - 1))
Z = np.array([1.0, 0.3, -0.2, 0.5, 0.1])


def rows_of(count, *, source="trusted"):
    """Design rows (SIZE,), and rows of the arms in turn, with weights from .3 to 2."""
    rng = np.random.default_rng(3)
    return [
        (
            np.concatenate([[1.0], rng.standard_normal(SIZE - 1)]),
            Row(ARMS[n % 3], tuple(rng.standard_normal(2)), 0.1, float(rng.uniform(0.3, 2.0)), source),
        )
        for n in range(count)
    ]


def learned(rows):
    heads = PooledHeads(ridge=RIDGE, bias_ridge=BIAS, memory=None)
    for z, row in rows:
        heads.learn(z, row)
    return heads


def ridge(rows, *, precision, moment, head=0, scale=PLAIN):
    """Weights (SIZE,) of a ridge regression with this prior precision and prior moment."""
    gram, moment = np.diag(precision), moment.copy()
    for z, row in rows:
        target = scale.quality(row.target[0]) if head == 0 else row.target[1]
        gram += scale.share * row.rows * np.outer(z, z)
        moment += scale.share * row.rows * target * z
    return np.linalg.solve(gram, moment)


def explicit(rows, arm, **more):
    """Means of quality and cost of an arm, which has read the pool before its first row and after row 4, 8, 16, 32."""
    own = [place for place, (_, row) in enumerate(rows) if row.arm == arm]
    read = max((n for n in (0, 4, 8, 16, 32, 64, 128) if n <= len(own)), default=0)
    before = rows[: own[max(read - 1, 0)]]
    pool = ridge(before, precision=PRECISION, moment=np.zeros(SIZE), **more)
    mine, narrow = [rows[place] for place in own], PRECISION * np.array([1.0] + [NARROW] * (SIZE - 1))
    quality = ridge(mine, precision=narrow, moment=narrow * pool, **more)
    return Z @ quality, Z @ ridge(mine, precision=narrow, moment=np.zeros(SIZE), head=1, **more)


@pytest.mark.parametrize("count", [1, 9, 12, 30, 100, 300])
def test_means_are_ridge_solutions_around_the_pool(count):
    """Quality is drawn to the regression of all rows as the arm has read it, cost to 0."""
    rows = rows_of(count)
    means = learned(rows).means(Z, arms=ARMS)
    for place, arm in enumerate(ARMS[:count]):
        assert means[:, place] == pytest.approx(explicit(rows, arm), abs=1e-9)


def test_an_arm_without_rows_is_as_good_as_the_pool():
    """A new arm has the quality that all rows predict, and no cost of its own."""
    rows = rows_of(90)
    pool = ridge(rows, precision=PRECISION, moment=np.zeros(SIZE))
    means = learned(rows).means(Z, arms=("new", "a"))
    assert means[:, 0] == pytest.approx((Z @ pool, 0.0), abs=1e-9)
    assert means[:, 1] == pytest.approx(explicit(rows, "a"), abs=1e-9)
    assert (PooledHeads(ridge=RIDGE, bias_ridge=BIAS, memory=None).means(Z, arms=("new",)) == 0.0).all()


def test_a_calibration_holds_for_the_pool_too():
    """Rows of a judge that are calibrated later count as if they had been calibrated when the arms read the pool next.

    After 128 rows of each arm all have just read, from a pool of calibrated rows.
    """
    rows, scale = rows_of(384, source="judge"), Scale(share=0.5, slope=0.8, offset=0.1)
    heads = PooledHeads(ridge=RIDGE, bias_ridge=BIAS, memory=None)
    for place, (z, row) in enumerate(rows):
        if place == 300:
            heads.rescale("judge", scale)
        heads.learn(z, row)
    assert heads.means(Z, arms=("a",))[:, 0] == pytest.approx(explicit(rows, "a", scale=scale), abs=1e-9)


@pytest.mark.parametrize("count", [0, 2, 50, 111])
def test_a_snapshot_has_what_the_arms_have_read(count):
    """Restored in or at the end of a block, the heads go on with the same bits."""
    rows, others = rows_of(count + 60), PooledHeads(ridge=RIDGE, bias_ridge=BIAS, memory=None)
    heads = learned(rows[:count])
    others.restore(*heads.state(), scales={})
    for z, row in rows[count:]:
        assert others.means(Z, arms=ARMS).tobytes() == heads.means(Z, arms=ARMS).tobytes()
        heads.learn(z, row)
        others.learn(z, row)
    (arrays, facts), (others_arrays, others_facts) = heads.state(), others.state()
    assert facts == others_facts
    assert {name: one.tobytes() for name, one in arrays.items()} == {
        name: one.tobytes() for name, one in others_arrays.items()
    }
