"""Restart of a changed arm: its effect on each policy, and that nothing else changes."""

import itertools
from dataclasses import replace

import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.algorithms.conservative import KNOWN
from ragbandit.router.policies.base import apply_update, pmf_of_one, restart_arm
from ragbandit.testing.policies import (
    ARMS,
    made_features,
    made_query,
    made_reward,
    made_updates,
    pmf_of,
    sha_of,
    taught,
    through_files,
)
from tests.support.additions import needs
from tests.support.cases import every_case

NO, ONE, MULTI = ARMS
RIDGE = {
    "mba": {"alarm": 1e18},
    "linucb": {},
    "rows": {},
    "context": {"alarm": 1e18, "context": {"hop": {"type": "number"}}},
}


def made(kind: str):
    return make_policy("linucb" if kind == "rows" else "mba" if kind == "context" else kind, params=RIDGE[kind])


def rows_of(arm, quality, count, *, first=1):
    """Rows of one arm whose answers are all alike."""
    rows = made_updates(count, first=first)
    return [replace(row, arm=arm, propensity=1.0, reward=made_reward(quality, cost=1.0)) for row in rows]


def predicted(policy, arm) -> float:
    output = pmf_of_one(policy, made_query(3), features=made_features(3), arms=ARMS)
    return output.scores[ARMS.index(arm)]


def test_old_rows_count_for_little():
    """After a restart, few rows outweigh hundreds of earlier ones of this arm, at any place of a block."""
    with every_case() as case:
        for kind, count in itertools.product(RIDGE, (64, 97)):
            with case(kind, count):
                _check(kind, count=count)


def _check(kind: str, *, count: int) -> None:
    going = taught(lambda: made(kind), [*rows_of(ONE, 0.9, count), *rows_of(NO, 0.9, 40, first=200)])
    begun = made(kind)
    begun.restore(*going.state())
    for arm in (ONE, ONE, "never_seen"):
        restart_arm(begun, arm)
    assert predicted(begun, NO) == predicted(going, NO)
    assert predicted(begun, ONE) != predicted(going, ONE)
    for row in rows_of(ONE, 0.1, 20, first=400):
        apply_update(going, row)
        apply_update(begun, row)
    assert predicted(going, ONE) - predicted(begun, ONE) > 0.2
    assert sha_of(through_files(begun)) == sha_of(begun)


def test_a_row_begins_arms_anew():
    """A ledger's row with `restarts` is the policy's `restart`, then its `learn`."""
    one, other = (taught(lambda: make_policy("mba", params={}), made_updates(50)) for _ in range(2))
    (row,) = made_updates(1, first=51)
    apply_update(one, replace(row, restarts=(ONE, MULTI)))
    restart_arm(other, ONE)
    restart_arm(other, MULTI)
    apply_update(other, row)
    assert sha_of(one) == sha_of(other) != sha_of(taught(lambda: make_policy("mba", params={}), made_updates(51)))


@pytest.mark.parametrize("inside", ["mba", pytest.param("vw", marks=needs("vw")), "linucb"])
def test_an_incumbent_begins_anew(inside):
    """After the restart of an incumbent no other arm is tried until it has outcomes; losses are kept."""
    if inside == "vw":
        pytest.importorskip("vowpal_wabbit_next")
    policy = make_policy("conservative", params={"policy": inside, "incumbent": ONE, "harm": 0.2, "weight": 0.1})
    for row in [*rows_of(ONE, 0.2, 60), *rows_of(NO, 0.9, 60, first=100)]:
        policy.learn(row)
    lost = policy.shortfall._lost

    def share() -> float:
        held = pmf_of_one(policy, made_query(3), features=made_features(3), arms=ARMS).restraint
        return 1.0 if held.allowance > 0.0 else 0.0

    restart_arm(policy, MULTI)
    assert share() == 1.0
    restart_arm(policy, ONE)
    policy = through_files(policy)
    (other,) = rows_of(NO, 0.9, 1, first=300)
    policy.learn(other)
    assert policy.shortfall._lost == lost
    for row in rows_of(ONE, 0.4, KNOWN, first=400):
        assert share() == 0.0
        policy.learn(row)
    assert share() == 1.0
    assert policy.shortfall.allowance("turn") == pytest.approx(0.2 * (0.4 - 0.1))


def test_other_policies():
    """A policy without restarts goes on without a change."""
    uniform = make_policy("uniform", params={})
    restart_arm(uniform, ONE)
    assert set(pmf_of(uniform).values()) == {1 / 3}
