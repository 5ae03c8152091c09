"""Intervals of a fixed log: the closed form against an optimiser, what must not change them, and the smallest logs."""

import numpy as np
import pytest

from ragbandit.router.comparison import intervals as estimation
from ragbandit.router.comparison.intervals import Extremes, Moments, cressie_read, extreme_rows, heavy_weight

CONFIDENCE = 0.95


def weight_powers(pmf, *, candidate):
    """Sums of w and w^2 over all arms, each with the candidate's probability: what `heavy_weight` reads."""
    weight = np.divide(candidate, pmf, out=np.zeros(pmf.shape), where=pmf > 0.0)
    return np.array([(candidate * weight).sum(), (candidate * weight**2).sum()])


def drawn(count, *, seed=0, controls=1):
    """Scores and weights of a made log."""
    random = np.random.default_rng(seed)
    weights = [random.gamma(0.5, 2.0, count) for _ in range(controls)]
    return (sum(weights) * random.random(count) + 0.1 * random.random(count), *weights)


def wide(rows):
    """These possible rows, and a range that cuts nothing."""
    return Extremes(rows=np.array(rows, dtype=float), low=-np.inf, high=np.inf)


def optimum(columns, extra, *, sign, share):
    """The least (sign 1) or largest (sign -1) weighted mean score, by a numerical optimiser over all row shares."""
    from scipy import (
        optimize,
        stats,
    )  # imported here: scipy takes 3 s to load, and every process of a test run would load it

    table = np.column_stack([np.append(column, more) for column, more in zip(columns, extra, strict=True)])
    count, controls = len(columns[0]), len(columns) - 1
    base = np.append(np.ones(count), share) / (count + share)

    # The least divergence that keeps the weights' means, and Student's share beyond it.
    def divergence(q):
        return (count + share) * float(((q - base) ** 2 / base).sum())

    fixed = [{"type": "eq", "fun": lambda q: q.sum() - 1.0}]
    fixed += [{"type": "eq", "fun": lambda q, k=k: q @ table[:, k] - 1.0} for k in range(1, controls + 1)]
    least = optimize.minimize(divergence, base, constraints=fixed, method="SLSQP", options={"ftol": 1e-10}).fun
    freedom = count - controls - 1
    more = stats.f.ppf(CONFIDENCE, 1, freedom) * (count + share) / freedom
    near = {"type": "ineq", "fun": lambda q: least + more - divergence(q)}
    found = optimize.minimize(
        lambda q: sign * (q @ table[:, 0]),
        base,
        constraints=[*fixed, near],
        method="SLSQP",
        options={"ftol": 1e-10, "maxiter": 1000},
    )
    assert found.success
    return float(found.x @ table[:, 0])


@pytest.mark.parametrize("controls", [1, 2])
def test_cressie_read_is_the_optimum(controls):
    """The closed form is what an optimiser finds over all shares of the rows, one or two weights held at mean 1."""
    columns = drawn(12, seed=controls, controls=controls)
    extra = (3.0, *(4.0,) * controls)
    low, high = cressie_read(Moments.of(*columns), confidence=CONFIDENCE, extremes=wide([extra]))
    share = estimation._SHARE
    assert low == pytest.approx(optimum(columns, extra, sign=1, share=share), rel=1e-4)
    assert high == pytest.approx(optimum(columns, extra, sign=-1, share=share), rel=1e-4)


def test_contains_the_estimate_and_keeps_to_the_range():
    """The interval is widened to the given point estimate, but never beyond the possible range."""
    random = np.random.default_rng(5)
    moments = Moments.of(random.random(400), np.ones(400))
    extremes = extreme_rows([1.0], rewards=(0.0, 1.0))
    assert cressie_read(moments, confidence=CONFIDENCE, extremes=extremes, value=0.9)[1] == 0.9
    assert cressie_read(moments, confidence=CONFIDENCE, extremes=extremes, value=1.7)[1] == 1.0
    high = Moments.of(np.full(400, 3.0), np.ones(400))
    low, most = cressie_read(high, confidence=CONFIDENCE, extremes=extremes)
    assert (low, most) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("heavy", "more", "rows", "value"),
    [
        ([9.0], {}, {(0, 9), (9, 9)}, (0, 1)),
        ([9.0], {"baseline": 0.5}, {(-4, 9), (5, 9)}, (0, 1)),
        ([9.0], {"minus_logged": True}, {(0, 9), (8, 9), (0, 0), (-1, 0)}, (-1, 1)),
        ([9.0], {"minus_logged": True, "baseline": 0.5}, {(-4, 9), (4, 9), (0.5, 0), (-0.5, 0)}, (-1, 1)),
        (
            [9.0, 4.0],
            {"baseline": 0.25},
            {(-2.25, 9, 0), (6.75, 9, 0), (1, 0, 4), (-3, 0, 4), (-2, 9, 1), (6, 9, 1), (0.75, 1, 4), (-2.25, 1, 4)},
            (-1, 1),
        ),
    ],
)
def test_extreme_rows_by_hand(heavy, more, rows, value):
    """The possible rows of rewards in [0, 1]: a value, one with a model, a lead on the logger, one on another."""
    extremes = extreme_rows(heavy, rewards=(0.0, 1.0), **more)
    assert {tuple(row) for row in extremes.rows.tolist()} == rows
    assert (extremes.low, extremes.high) == value


def test_heavy_weight_by_hand():
    """Mean w^3 over mean w^2 of all arms, drawn or not; sums of two pieces are the sums of both."""
    pmf = np.array([[0.5, 0.5], [0.1, 0.9], [1.0, 0.0]])
    candidate = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    powers = weight_powers(pmf, candidate=candidate)
    # weights 1 and 1; 10 and 0; .5, and an arm without chance
    assert powers == pytest.approx([1 + 10 + 0.25, 1 + 100 + 0.125])
    assert heavy_weight(powers) == pytest.approx(101.125 / 11.25)
    assert weight_powers(pmf[:1], candidate=candidate[:1]) + weight_powers(
        pmf[1:], candidate=candidate[1:]
    ) == pytest.approx(powers)
    assert heavy_weight(np.zeros(2)) == 1.0


def test_two_ways_of_which_one_is_what_was_served():
    """What a confident policy served against always an arm that it seldom drew: the interval holds the truth."""
    held, rows = 0, np.arange(280)
    for seed in range(100):
        random = np.random.default_rng(seed)
        kind = random.integers(2, size=280)
        pmf = np.array([[0.98, 0.02], [0.02, 0.98]])[kind]
        chance = np.array([[0.82, 0.6], [0.3, 0.6]])[kind]
        arm = (random.random(280) > pmf[:, 0]).astype(int)
        right = (random.random(280) < chance[rows, arm]).astype(float)
        heavy = (1.0, heavy_weight(np.array([(1.0 / pmf[:, 1]).sum(), (1.0 / pmf[:, 1] ** 2).sum()])))
        weight = (arm == 1) / pmf[:, 1]
        scores = right - weight * (right - right.mean()) - right.mean()
        truth = float(((pmf * chance).sum(axis=1) - chance[:, 1]).mean())
        extremes = extreme_rows(heavy, rewards=(0.0, 1.0), baseline=float(right.mean()))
        moments = Moments.of(scores, np.ones(280), weight)
        low, high = cressie_read(moments, confidence=0.95, extremes=extremes, value=float(scores.mean()))
        held += low <= truth <= high
    assert held >= 93


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.97])
def test_intervals_hold_the_truth_with_few_huge_weights(chance):
    """On 500 rows of which one in 50 has a weight of 25, the interval holds the truth in 93 of 100 logs or more."""
    held = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        pmf = np.tile([0.98, 0.02], (500, 1))
        candidate = np.tile([0.5, 0.5], (500, 1))
        arm = (random.random(500) > 0.98).astype(int)
        weight = (candidate / pmf)[np.arange(500), arm]
        score = weight * (random.random(500) < chance)
        extremes = extreme_rows([heavy_weight(weight_powers(pmf, candidate=candidate))], rewards=(0.0, 1.0))
        low, high = cressie_read(Moments.of(score, weight), confidence=CONFIDENCE, extremes=extremes)
        held += low <= chance <= high
    assert held >= 2 * 93
