"""From a policy's word to a draw: gate, floor, seed and choose are exact and can be taken again from the row."""

import hashlib
import hmac
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import PolicyOutput, epsilon_greedy, restore_policy, restored_counts
from ragbandit.router.policies.draw import (
    checked_pmf,
    cold_start_floors,
    draw,
    draw_index,
    is_explored,
    seed_of,
    with_floor,
)
from ragbandit.shared.errors import PolicyFault, SnapshotError
from tests.support.examples import steady

#: upper 0.1 % points of chi-square by degrees of freedom
CHI_SQUARE = {1: 10.828, 2: 13.816, 3: 16.266, 4: 18.467, 5: 20.515}


def normal(weights):
    total = math.fsum(weights)
    return tuple(w / total for w in weights)


weights = st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda ws: math.fsum(ws) > 1e-3)
pmfs = weights.map(normal)
seeds = st.integers(0, 2**64 - 1)


def named(count):
    return [f"arm_{i}" for i in range(count)]


@steady
@given(pmf=pmfs)
def test_gate_gives_a_pmf(pmf):
    """What passes the gate sums to 1 within two units of rounding per arm and keeps every probability."""
    passed = checked_pmf(PolicyOutput(pmf=pmf), arms=named(len(pmf)))
    assert math.fsum(passed) == pytest.approx(1.0, abs=1e-15 * len(pmf))
    assert passed == pytest.approx(pmf, abs=1e-12)


@pytest.mark.parametrize(
    ("pmf", "what"),
    [
        ((0.5, math.nan), "not finite"),
        ((0.5, math.inf), "not finite"),
        ((1.1, -0.1), "negative"),
        ((1.0,), "1 entries for 2 arms"),
        ((0.4, 0.3, 0.3), "3 entries for 2 arms"),
        ((), "0 entries"),
        ((0.5, 0.4), "sums to"),
        ((0.5, 0.5 + 1e-5), "sums to"),
        ((0.0, 0.0), "sums to"),
    ],
)
def test_gate_refuses(pmf, what):
    """What is no pmf over the offered arms is a PolicyFault that says why."""
    with pytest.raises(PolicyFault, match=what):
        checked_pmf(PolicyOutput(pmf=pmf), arms=("a", "b"))


@pytest.mark.parametrize("scores", [(0.0, math.nan), (math.inf, 0.0), (1.0,), (1.0, 2.0, 3.0)])
def test_gate_refuses_wrong_scores(scores):
    """Scores that are not finite, or not one per arm, are a PolicyFault: they would be logged."""
    with pytest.raises(PolicyFault):
        checked_pmf(PolicyOutput(pmf=(0.5, 0.5), scores=scores), arms=("a", "b"))


@steady
@given(pmf=pmfs, floor=st.floats(0, 0.5))
def test_floor_is_kept(pmf, floor):
    """After the floor every arm has at least the floor (1/K where K arms cannot), and the sum is 1."""
    mixed = with_floor(pmf, floor=floor)
    least = min(floor, 1.0 / len(pmf))
    assert all(p >= least for p in mixed)
    assert math.fsum(mixed) == pytest.approx(1.0, abs=1e-14)


def test_floor_vector():
    """The mix is p' = floor + (1 - K floor) p: 0.02 on three arms turns (1, 0, 0) into (0.96, 0.02, 0.02)."""
    assert with_floor((1.0, 0.0, 0.0), floor=0.02) == pytest.approx((0.96, 0.02, 0.02), abs=1e-15)


@steady
@given(pmf=pmfs, floor=st.floats(0.0, 0.5), data=st.data())
def test_raised_floors_are_kept(pmf, floor, data):
    """Every arm has the ordinary floor, and its raised one where all of them fit into 1; the sum is 1."""
    arms = [f"arm{i}" for i in range(len(pmf))]
    raised = data.draw(st.dictionaries(st.sampled_from(arms), st.floats(0.01, 0.5), min_size=1))
    mixed = with_floor(pmf, floor=floor, floors=raised, arms=arms)
    assert math.fsum(mixed) == pytest.approx(1.0, abs=1e-12)
    floors = [max(floor, raised.get(arm, 0.0)) for arm in arms]
    assert min(mixed) >= min(floor, 1.0 / len(pmf)) - 1e-12
    if math.fsum(floors) <= 1.0:
        assert all(p >= f - 1e-12 for p, f in zip(mixed, floors, strict=True))


def test_newcomers_are_the_arms_with_too_few_outcomes():
    """An arm below the number of outcomes has the cold-start floor, one at it has not, one never seen has."""
    seen = {"old": 100, "young": 9, "grown": 10}
    arms = ("old", "young", "grown", "new")
    assert cold_start_floors(seen, arms=arms, share=0.1, outcomes=10) == {"young": 0.1, "new": 0.1}
    assert cold_start_floors(seen, arms=arms, share=0.0, outcomes=10) == {}


def test_a_broken_policy_keeps_the_floors():
    """The fallback's pmf has the floors too, and says why it was drawn from."""
    drawn = draw(ValueError("no"), arms=("a", "b"), floor=0.02, fallback="a", seed=5, floors={"b": 0.4})
    assert drawn.fault == "ValueError: no"
    assert drawn.pmf == pytest.approx((0.6 - 0.02 + 0.02, 0.4))


@pytest.mark.parametrize(
    ("fallback", "arms", "played"),
    [
        (None, ("a", "single_step", "b"), "single_step"),
        (None, ("a", "b"), "a"),
        ("b", ("a", "single_step", "b"), "b"),
        ("c", ("a", "single_step", "b"), "a"),
    ],
)
def test_who_plays_for_a_broken_policy(fallback, arms, played):
    """The named fallback plays, or single_step without a name; if it is not offered, the first arm plays."""
    drawn = draw(ValueError("no"), arms=arms, floor=0.0, fallback=fallback, seed=5)
    assert arms[drawn.index] == played
    assert drawn.pmf[drawn.index] == 1.0


@pytest.mark.parametrize("decision_id", ["0197", "d-1", "", "é"])
def test_seed_is_the_head_of_a_digest(decision_id):
    """The seed is the first eight bytes, big-endian, of the id's sha256, with a secret of its HMAC-SHA256."""
    text = decision_id.encode("utf-8")
    assert seed_of(decision_id) == int(hashlib.sha256(text).hexdigest()[:16], 16)
    assert seed_of(decision_id, secret=b"s" * 32) == int(hmac.new(b"s" * 32, text, "sha256").hexdigest()[:16], 16)


def test_seed_vector():
    """The seeds of decision "d-1" never change between versions."""
    assert seed_of("d-1") == 0x0741A320E613BAAC
    assert seed_of("d-1", secret=bytes(32)) == 0xC9C923860D9724D8


@pytest.mark.parametrize(
    "pmf",
    [(0.5, 0.5), (0.96, 0.02, 0.02), (0.1, 0.0, 0.6, 0.3), (1 / 6,) * 6, (0.05, 0.9, 0.05), (0.0, 0.25, 0.75)],
    ids=str,
)
def test_draws_follow_the_pmf(pmf):
    """Over 20,000 decision ids the arms are drawn with the logged probabilities (chi-square, 0.1 %)."""
    count = 20_000
    drawn = np.zeros(len(pmf))
    for i in range(count):
        drawn[draw_index(pmf, seed=seed_of(f"decision-{i}"))] += 1
    likely = np.array(pmf) > 0
    expected = np.array(pmf)[likely] * count
    assert drawn[~likely].sum() == 0
    assert float(((drawn[likely] - expected) ** 2 / expected).sum()) < CHI_SQUARE[int(likely.sum()) - 1]


@steady
@given(pmf=pmfs, seed=seeds)
@example(pmf=(0.0, 1.0), seed=0)
@example(pmf=(1.0, 0.0), seed=2**64 - 1)
@example(pmf=(0.1,) * 9 + (0.1 - 1e-16, 0.0), seed=2**64 - 1)
def test_impossible_arms_are_never_drawn(pmf, seed):
    """The arm drawn has a probability above 0, at both ends of the seeds too."""
    assert pmf[draw_index(pmf, seed=seed)] > 0.0


@steady
@given(pmf=pmfs, seed=seeds)
def test_draw_is_the_inverse_transform(pmf, seed):
    """The arm drawn is the one whose stretch of the cumulated pmf holds u = top 53 bits / 2**53."""
    u = (seed >> 11) / 2**53
    edges = np.add.accumulate(pmf)  # left to right, as the draw does
    assume(u < edges[-1])
    assert draw_index(pmf, seed=seed) == int(np.searchsorted(edges, u, side="right"))


@steady
@given(scores=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), epsilon=st.floats(0, 1))
def test_epsilon_greedy_is_a_pmf(scores, epsilon):
    """epsilon/K everywhere, the rest shared by the best arms; sums to 1."""
    pmf = epsilon_greedy(scores, epsilon=epsilon)
    assert math.fsum(pmf) == pytest.approx(1.0, abs=1e-12)
    best = [i for i, s in enumerate(scores) if s == max(scores)]
    for i, p in enumerate(pmf):
        share = (1 - epsilon) / len(best) if i in best else 0.0
        assert p == pytest.approx(epsilon / len(scores) + share, abs=1e-15)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"updates": 2},
        {"seen": {"a": 2}},
        {"updates": 3, "seen": {"a": 2}},
        {"updates": 0, "seen": {"a": 0}},
        {"updates": "2", "seen": {"a": 2}},
        {"updates": 2, "seen": {"a": "2"}},
        {"updates": 2, "seen": ["a", "a"]},
    ],
)
def test_counts_that_do_not_fit_are_refused(facts):
    """A saved state whose counts are missing, of another type, or do not add up is refused."""
    with pytest.raises(SnapshotError):
        restored_counts(facts)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_that_are_not_finite_are_named(number, kind):
    """A saved array with a number that is not finite is refused by its name, before the policy sees it."""
    policy = make_policy("uniform", params={})
    arrays, facts = policy.state()
    with pytest.raises(SnapshotError, match="weights has numbers that are not finite"):
        restore_policy(policy, arrays | {"weights": np.array([0, number], dtype=kind)}, facts)


def test_all_but_the_strictly_likeliest_arm_are_explored():
    """A draw among arms with equal probability explores; the only offered arm does not."""
    for pmf, explored in (
        ((1 / 3, 1 / 3, 1 / 3), (True, True, True)),
        ((0.5, 0.3, 0.2), (False, True, True)),
        ((0.4, 0.4, 0.2), (True, True, True)),
        ((1.0,), (False,)),
    ):
        assert tuple(is_explored(pmf, drawn) for drawn in range(len(pmf))) == explored
