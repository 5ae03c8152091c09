"""The made worlds of benchmarks/learning/context.py: what hangs on the context is learned in 1,000 rows."""

import pytest

from benchmarks.learning.context import made_world, shares


@pytest.mark.parametrize("policy", ["mba", "linucb", "vw"])
@pytest.mark.slow
def test_context_alone(policy):
    """Where the best arm hangs on the context alone, the greedy choice has 95 % of the oracle's reward (vw: 90 %)."""
    greedy, served, _ = shares(made_world("alone", seed=0), policy=policy, reads="question + context", seed=0)
    assert greedy >= (0.9 if policy == "vw" else 0.95)
    assert served > 0.8


@pytest.mark.parametrize("policy", ["mba", "linucb", "vw"])
@pytest.mark.slow
def test_context_times_question(policy):
    """Where it hangs on context and question together, both beat each of them by far."""
    world = made_world("product", seed=0)
    both, *each = (
        shares(world, policy=policy, reads=reads, seed=0)[0] for reads in ("question + context", "question", "context")
    )
    assert both > max(each) + 0.1
