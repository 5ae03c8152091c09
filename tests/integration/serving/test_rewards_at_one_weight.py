"""Rewards that are shown: at reward.weight, whatever the weight of cost that a question was served at."""

import pytest

from ragbandit.router.serving.overview import overview
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.types import Query

ARMS = {"cheap": {"run_by": "caller"}, "dear": {"run_by": "caller"}}
#: right answers of one step, at the usual weight
REWARD = 1.0 - 0.05


@pytest.fixture
def world(make_world):
    """Sixty right answers of one step, half of them served at a weight of cost of 1,000."""
    new_world = make_world(arms=ARMS, policy={"name": "mba", "fallback": "cheap"}, cost_weights={"strict": 1000.0})
    for number in range(60):
        query = Query(text=f"question {number}", cost_weight="strict" if number % 2 else None)
        decision = new_world.router.submit(query, run_by="caller").result(30)
        new_world.outcome(decision)
        new_world.feedback(decision, rating=True)
    assert new_world.learn() == 60
    assert sorted({round(row["value"], 9) for row in new_world.updates()}) == [
        -1.0,
        REWARD,
    ]  # learned at each one's own
    return new_world


def test_totals(world):
    """The overview's rewards, of all and of each arm, are quality minus reward.weight times cost."""
    TotalsExtender(world.database, holder="one", weight=0.05, clock=lambda: world.now + 60.0).extend()
    earned = overview(world.database, policy="main", since=world.now - 10_000.0, until=world.now + 10.0, weight=0.05)
    for totals in (earned.totals, *(one.totals for one in earned.arms)):
        assert (totals.reward, totals.quality, totals.cost) == (pytest.approx(REWARD), 1.0, 1.0)
