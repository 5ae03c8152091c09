"""Routers, learners and the evaluator together: a canary earns what it earns, and the next decision shows it."""

import pytest

from ragbandit.router.learning.learner import Learner
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import CandidateNotes
from tests.integration.serving.versions.test_serving import ARMS, FIXED_TWO, PATIENT
from tests.support.rollouts import add, do


@pytest.mark.parametrize(("two", "kind", "share"), [(0.1, "rollback", (0.0, 0.5)), (0.9, "better", (0.8, 1.0))])
def test_a_canary_gets_what_it_earns(make_world, two, kind, share):
    """Judged in its own ledger, a worse canary is gone from the next decision on; a better one may be promoted."""
    world = make_world(arms=ARMS, policy={"name": "uniform"}, **PATIENT)
    version = add(world.database, reward={"weight": 0.0}, **FIXED_TWO)
    do(world.database, "shadow")
    do(world.database, "canary", weight=0.5)
    world.router.refresh()
    for number in range(150):
        world.now += 10.0
        made = world.route(key=f"00000000-0000-7000-8000-{number:012d}")  # the same draws in every run
        world.outcome(made)
        world.feedback(made, rating=two if made.arm == "two" else 1.0 - two)
    ledger, settings = Ledger(world.database, label=version.label), settings_of(world.settings, version)
    Learner(ledger, files=world.files, settings=settings, clock=world.clock).drain()
    evaluator = Evaluator(world.database, settings=world.settings)
    (look,) = evaluator.evaluate(now=world.now + 6.0)
    assert (look.finding.kind, look.version.state) == (kind, "rolled_back" if kind == "rollback" else "canary")
    if kind == "better":
        assert do(world.database, "promote", now=world.now + 7.0).reason == "because"
    world.router.refresh()
    made = world.route()
    assert CandidateNotes.key not in made.facts
    assert (made.policy == version.label) == (kind == "better")
    assert share[0] <= made.pmf[made.arms.index("two")] <= share[1]
    assert evaluator.evaluate(now=world.now + 8.0) == []
