"""Draws of a group: arrays give the bits of `draw`, question by question."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.policies.draw import draw, draw_group, is_explored, seed_of
from ragbandit.router.policies.mixing import Holdback
from tests.support.examples import steady

ARMS = ("one", "two", "three", "four", "five", "six")

weights = st.floats(0, 1e6) | st.sampled_from([0.0, 1e-300, 5e-324, 1.0])
floors = st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]) | st.floats(0, 1)
held_back = st.builds(Holdback, arm=st.sampled_from(ARMS), share=st.sampled_from([0.02, 0.5]) | st.floats(1e-9, 0.5))
#: what no pmf may be, and what only looks like one
odd_values = st.sampled_from([float("nan"), float("inf"), -0.1, -0.0, 2.0, None, "0.5", True, 1, Decimal("0.5"), 1j])
#: a pmf as a policy may round it: the gate lets a sum through that is off by 1e-6
slips = st.sampled_from([0.0, 1e-12, -3e-7, 9e-7, 1.1e-6])


@st.composite
def outputs(draw_, *, arms: int) -> Any:
    kind = draw_(st.sampled_from(["pmf"] * 6 + ["odd", "short", "scores", "facts", "error", "float32"]))
    if kind == "error":
        return ValueError("the policy broke")
    raw = draw_(st.lists(weights, min_size=arms, max_size=arms))
    total = sum(raw)
    pmf: list[Any] = [one / total for one in raw] if total > 0 else [1.0 / arms] * arms
    pmf[0] = pmf[0] + draw_(slips)
    scores: Any = draw_(st.none() | st.lists(st.floats(-1e9, 1e9), min_size=arms, max_size=arms).map(tuple))
    facts: Any = {"epsilon": 0.1}
    if kind == "odd":
        pmf[draw_(st.integers(0, arms - 1))] = draw_(odd_values)
    elif kind == "short":
        pmf = pmf[1:]
    elif kind == "scores":
        scores = draw_(st.sampled_from([(1.0,) * (arms + 1), (float("nan"),) * arms, ("1",) * arms, (None,) * arms]))
    elif kind == "facts":
        facts = None
    elif kind == "float32":
        pmf = [np.float32(one) for one in pmf]
    return PolicyOutput(pmf=tuple(pmf), scores=scores, facts=facts)


def bits(drawn: Any) -> Any:
    """The draw by its bits: -0.0 is not 0.0, and a number keeps its type."""
    pmf = tuple(value.hex() for value in drawn.pmf)
    return (
        drawn.index,
        pmf,
        drawn.floor.hex(),
        repr(drawn.scores),
        drawn.facts,
        drawn.fault,
        {type(value) for value in drawn.pmf},
    )


def test_all_but_the_strictly_likeliest_arm_are_explored():
    """So is each of arms that are alike; the only one on offer is not."""
    for pmf, explored in (
        ((1 / 3, 1 / 3, 1 / 3), (True, True, True)),
        ((0.5, 0.3, 0.2), (False, True, True)),
        ((0.4, 0.4, 0.2), (True, True, True)),
        ((1.0,), (False,)),
    ):
        assert tuple(is_explored(pmf, drawn) for drawn in range(len(pmf))) == explored


@steady
@given(
    data=st.data(), arms=st.integers(1, 6), floor=floors, share=st.none() | st.floats(0, 1), held=st.none() | held_back
)
def test_group_draws_as_one_by_one(data, arms, floor, share, held):
    """Every draw of a group has the bits that it has alone, whatever the others are: pmf, arm, scores, facts, fault."""
    offered = ARMS[:arms]
    said = data.draw(st.lists(outputs(arms=arms), min_size=8, max_size=24))
    seeds = [seed_of(str(at)) for at in range(len(said))]
    raised = None if share is None else {offered[0]: share, offered[-1]: share / 2}
    common = {"arms": offered, "floor": floor, "fallback": None, "raised": raised, "holdback": held}
    alone = [draw(output, seed=seed, **common) for output, seed in zip(said, seeds, strict=True)]
    assert list(map(bits, draw_group(said, seeds=seeds, **common))) == list(map(bits, alone))


@pytest.mark.parametrize("seed", [0, 2**64 - 1, 2**63, 2**11 - 1])
def test_edges_of_the_draw(seed):
    """The least and the largest seed draw the same arm in a group as alone, also where rounding leaves a sliver."""
    pmf = (0.1, 0.2, 0.3, 0.1, 0.1, 0.2)
    said = [PolicyOutput(pmf=pmf), PolicyOutput(pmf=(0.0, 0.0, 0.5, 0.5, 0.0, 0.0))] * 4
    common = {"arms": ARMS, "floor": 0.0, "fallback": None}
    alone = [draw(output, seed=seed, **common) for output in said]
    assert draw_group(said, seeds=[seed] * 8, **common) == alone
