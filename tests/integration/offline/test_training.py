"""Which policies `ragbandit policy train` takes, and the fine-tuned policy of the core in the live loop."""

from ragbandit.router.offline.training import trainable_policies
from tests.support.finetuned import READING
from tests.support.policies import POLICIES


def test_trainable_policies_are_those_that_fit():
    """`train` takes the built-in policies that learn from tables, all of them in additions."""
    assert {*trainable_policies()} == {"adaptive_rag", "multi_label", "popularity"} & POLICIES.keys()


def test_mba_paper_learns_live_and_replays(make_world):
    """mba_paper decides, learns from feedback and serves what it learned; replaying the ledger gives it bit for bit."""
    params = READING | {"learning_rate": 1e-3}
    world = make_world(policy={"name": "mba_paper", "params": params, "floor": 0.02, "cold_start_floor": 0.0})
    first = world.router.service.serving.policy
    for _ in range(3):
        decided = world.judged(4)
        assert world.learn() == 4
    assert decided[0].facts["epsilon"] < 1.0
    live = world.router.service.serving.policy
    assert live is not first
    assert live.updates == 12
    assert world.sha256(world.replayed()) == world.sha256(live)
