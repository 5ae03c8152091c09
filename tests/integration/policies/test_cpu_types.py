"""Propensities and states do not depend on the loops that libraries choose for a processor."""

import numpy as np
import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.shared.types import ArmName
from ragbandit.testing.policies import ARMS, made_features, made_query, made_updates, pmf_of, taught
from tests.support.policies import SCHEMA, example

TWENTY = tuple(ArmName(f"arm_{number:02}") for number in range(20))
#: lessons that fill blocks, of a width that BLAS has loops of its own for; lessons of many arms
WIDE, MANY = made_updates(250, size=150), made_updates(60, arms=TWENTY)


def said():
    """Case -> pmfs, or sums of the state, after its lessons."""
    lessons = made_updates(60)
    cases = {name: example(name) for name in ("conservative", "linucb", "mba")}
    cases |= {"linucb with context": {"context": SCHEMA}, "mba in blocks with context": {"context": SCHEMA}}
    found = {}
    for case, params in cases.items():
        policy = taught(lambda case=case, params=params: make_policy(case.split()[0], params=params), lessons)
        outputs = [pmf_of_one(policy, made_query(n), features=made_features(n), arms=ARMS) for n in range(10)]
        found[case] = [list(output.pmf) for output in outputs]
    found["mba in blocks"] = sums_of(taught(lambda: make_policy("mba", params={}), WIDE))
    many = taught(lambda: make_policy("linucb", params={}), MANY)
    found["linucb over many arms"] = [list(pmf_of(many, arms=TWENTY).values())]
    return found


def sums_of(policy):
    """The sum of each array of its state."""
    return [[float(array.sum()) for _, array in sorted(policy.state()[0].items())]]


def test_policies_are_the_same_with_other_loops(other_processor):
    """On a processor with other kernels of BLAS, policies differ by at most 1e-9."""
    there, here = other_processor.call(said), said()
    for case, rows in here.items():
        assert np.array(there[case]) == pytest.approx(np.array(rows), rel=1e-9, abs=1e-9), case


def same_everywhere():
    return "the same bits"


def test_equal_bits_prove_nothing(other_processor):
    """A test fails if what it computes to tell the processors apart is the same on both."""
    with pytest.raises(pytest.fail.Exception, match="same_everywhere are the same on the other processor"):
        other_processor.require_other_bits(same_everywhere)


def test_an_error_on_the_other_processor_fails_the_test(other_processor):
    """A test fails with the other processor's traceback, and the next call is answered."""
    with pytest.raises(pytest.fail.Exception, match="ZeroDivisionError"):
        other_processor.call(divmod, 1, 0)
    assert other_processor.call(divmod, 7, 3) == (2, 1)
