"""Each policy, from a configuration to decisions, and what it learned from them to a ledger that verifies."""

from pathlib import Path

import pytest
import yaml

from ragbandit import Router
from ragbandit.router.config.loading import load
from ragbandit.router.learning.audit.checks import AuditResult
from tests.support.audits import verified
from tests.support.policies import FINE_TUNED, POLICIES, example

ARMS = ["no_retrieval", "single_step", "multi_step"]


def learned(config: Path, numbers: range) -> AuditResult:
    """Audit of the store after these questions were decided, rated and learned."""
    with Router.open(load(config).settings) as router:
        for number in numbers:
            decision = router.route(f"who wrote dracula ? {number}")
            assert sum(decision.pmf) == pytest.approx(1.0)
            assert decision.propensity == decision.pmf[decision.arms.index(decision.arm)] > 0.0
            router.outcome(decision.id, answer="Bram Stoker", steps=1)
            router.feedback(decision.id, rating=True)
        assert router.learn() == len(numbers)
        return router.verify(deep=True)


@pytest.fixture
def other(request, name):
    """The other processor; with torch if the policy uses it."""
    return request.getfixturevalue("other_torch" if name in FINE_TUNED else "other_processor")


@pytest.mark.other_processor
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_decides_and_learns(tmp_path, other, name):
    """A configured policy decides questions, learns their ratings, and the ledger is computed again from the store:
    here, on another processor, which learns on, and here again.
    """
    if name == "vw":
        pytest.importorskip("vowpal_wabbit_next", reason="Vowpal Wabbit has no wheel for this Python")
    # Policies in bfloat16 are verified on processors that are alike (docs/machines.md).
    precision = {"precision": "float32"} if name in FINE_TUNED else {}
    policy = {"name": name, "params": example(name) | precision}
    encoder = {"model": "hashing", "dimension": 16}
    tree = {"data_dir": str(tmp_path / "data"), "encoder": encoder, "policy": policy}
    tree["arms"] = {arm: {"run_by": "caller"} for arm in ARMS}
    if name == "llm":  # nobody listens there, so its fallback arm is drawn: test_llm.py has a server that answers
        tree["generator"] = {"name": "openai", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    here = learned(config, range(6))
    assert here.ok, here.notes
    there = other.call(learned, config, range(6, 12))
    assert (there.ok, there.updates) == (True, 12), there.notes
    here = verified(load(config).settings)
    assert (here.ok, here.updates) == (True, 12), here.notes
