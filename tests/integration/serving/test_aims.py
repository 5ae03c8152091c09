"""Aims from the learner to the row: the frontier is stored with the policy, followed, and solved for each question."""

import json

import pytest

from ragbandit.router.learning.monitoring.frontier import LEAST, read_frontier
from ragbandit.shared.types import Query
from tests.conftest import on_sqlite

STEPS = {"cheap": 1.0, "dear": 4.0}


@on_sqlite
def test_an_aim_is_served(make_world, database_url):
    """Without a frontier the setting's weight serves; with it a lower mean has a higher weight; the row has both."""
    world = make_world(database_url=database_url, arms={name: {"run_by": "caller"} for name in STEPS})

    def asked(aim):
        decision = world.router.submit(Query(text="who?", aim=aim), run_by="caller").result(30)
        return world.router.decision(decision.id).decision

    assert (asked({"steps": 2.0}).cost_weight, dict(asked({"steps": 2.0}).query.aim)) == (None, {"steps": 2.0})
    for _ in range(LEAST + 10):
        decision = world.route()
        outcome = {"status": "answered", "answer": "Paris", "steps": 1.5 * STEPS[decision.arm]}
        world.router.outcome(decision.id, **outcome)
        world.feedback(decision, rating=int(decision.arm == "dear" or len(decision.id) % 2))
    world.learn()
    frontier = read_frontier(world.ledger.frontier())
    assert frontier.weights[0] == 0.0
    assert frontier.cost[0] > frontier.cost[-1]
    assert 1.4 < frontier.cost[-1] < 2.5
    low, high = (asked({"steps": mean}).cost_weight for mean in (2.0, 5.0))
    assert low == pytest.approx(frontier.weight_of(cost=2.0))
    assert low > high
    assert asked({"quality": 0.9}).cost_weight == pytest.approx(frontier.weight_of(quality=0.9))
    assert read_frontier(json.dumps(json.loads(world.ledger.frontier()))) == frontier
    assert world.router.verify().ok
