"""Each policy, from a configuration to decisions, and what it learned from them to a ledger that verifies."""

import pytest
import yaml

from ragbandit import Router
from ragbandit.router.config.loading import load
from tests.support.policies import POLICIES, example

ARMS = ["no_retrieval", "single_step", "multi_step"]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_decides_and_learns(tmp_path, name):
    """A configured policy decides questions, learns their ratings, and the ledger is computed again from the store."""
    if name == "vw":
        pytest.importorskip("vowpal_wabbit_next", reason="Vowpal Wabbit has no wheel for this Python")
    policy = {"name": name, "params": example(name)}
    encoder = {"model": "hashing", "dimension": 16}
    tree = {"data_dir": str(tmp_path / "data"), "encoder": encoder, "policy": policy}
    tree["arms"] = {arm: {"run_by": "caller"} for arm in ARMS}
    if name == "llm":  # nobody listens there, so its fallback arm is drawn: test_llm.py has a server that answers
        tree["generator"] = {"name": "openai", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    with Router.open(load(config).settings) as router:
        for number in range(6):
            decision = router.route(f"who wrote dracula ? {number}")
            assert sum(decision.pmf) == pytest.approx(1.0)
            assert decision.propensity == decision.pmf[decision.arms.index(decision.arm)] > 0.0
            router.outcome(decision.id, answer="Bram Stoker", steps=1)
            router.feedback(decision.id, rating=True)
        assert router.learn() == 6
        assert router.verify(deep=True).ok
