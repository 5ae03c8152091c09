"""What an answer saved against the holdback's arm: a mean that is read once a minute, or nothing."""

import pytest

from ragbandit.router.serving.overview import Savings
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.types import Cost

HELD = {"holdback": {"arm": "multi_step", "share": 0.4}}


def test_the_mean_of_the_holdbacks_arm(make_world):
    """Savings are estimated from ten outcomes of the holdback arm on, and read again after a minute."""
    world = make_world(policy=HELD)
    clock = [0.0]
    savings = Savings(world.database, policy=world.settings.policy, clock=lambda: clock[0])
    savings.refresh()
    assert savings.of(Cost(dollars=0.5)) is None
    spent = []
    for number in range(60):
        decision = world.route(key=f"saved-{number}")
        if decision.arm == "multi_step":
            spent.append(0.01 * (number + 1))
        world.outcome(decision, cost={"dollars": spent[-1] if decision.arm == "multi_step" else 0.001})
    TotalsExtender(world.database, holder="one", weight=0.05, clock=lambda: world.now + 60.0).extend()
    savings.refresh()
    assert savings.mean is None
    clock[0] = 60.0
    savings.refresh()
    assert len(spent) >= 10
    assert savings.of(Cost(dollars=0.001)) == pytest.approx(sum(spent) / len(spent) - 0.001)
    without = Savings(world.database, policy=make_world().settings.policy)
    without.refresh()
    assert without.mean is None
