"""Routers, learners and the evaluator together: a canary earns what it earns, and the next decision shows it."""

import pytest

from ragbandit.router.learning.learner import Learner
from ragbandit.router.rollouts import verbs
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import CANDIDATE, PolicyLabel

BASE = PolicyLabel("main")
ARMS = {name: {"run_by": "caller"} for name in ("one", "two", "three")}
TWO = {"policy": {"name": "fixed", "params": {"arm": "two"}}, "reward": {"weight": 0.0}}


class Service:
    """A router, the learners of both ledgers, and a canary of half the traffic that plays the arm "two"."""

    def __init__(self, world):
        self.world, self.database = world, world.database
        verbs.add(self.database, base=BASE, changes=TWO, actor="test", reason="tried", now=world.now)
        for verb in ("shadow", "canary"):
            self.do(verb, weight=0.5 if verb == "canary" else None)
        world.router.refresh()
        settings = settings_of(world.settings, self.version)
        ledger = Ledger(self.database, label=self.version.label)
        self.candidate = Learner(ledger, files=world.files, settings=settings, clock=world.clock)

    def do(self, verb, **more):
        act = verbs.Act(verb=verb, name="v1", base=BASE, actor="test", reason="tried", now=self.world.now, **more)
        return verbs.perform(self.database, act, settings=self.world.settings.rollout)

    @property
    def version(self):
        with self.database.read() as connection:
            return store.version_named(connection, "v1", base=BASE)

    def live(self, count, *, two, others):
        """Questions that are answered and rated, then learned by both."""
        for number in range(count):
            self.world.now += 10.0
            made = self.world.route(key=f"00000000-0000-7000-8000-{number:012d}")  # the same draws in every run
            self.world.outcome(made)
            self.world.feedback(made, rating=two if made.arm == "two" else others)
        self.candidate.drain()
        self.world.learn()


@pytest.fixture
def service(make_world):
    return Service(make_world(arms=ARMS, policy={"name": "uniform"}, rollout={"time_limit_s": 5.0}))


@pytest.mark.parametrize(
    ("two", "kind", "state", "share"),
    [(0.1, "rollback", "rolled_back", (0.0, 0.5)), (0.9, "better", "canary", (0.8, 1.0))],
)
def test_a_canary_gets_what_it_earns(service, two, kind, state, share):
    """Judged in its own ledger, a worse canary is gone from the next decision on; a better one may be promoted."""
    world = service.world
    service.live(150, two=two, others=1.0 - two)
    evaluator = Evaluator(service.database, settings=world.settings)
    (look,) = evaluator.evaluate(now=world.now + 6.0)
    assert (look.finding.kind, look.version.state) == (kind, state)
    assert look.finding.reason.startswith("v1 is")
    if kind == "better":
        assert service.do("promote").reason == "tried"
    world.router.refresh()
    made = world.route()
    assert CANDIDATE not in made.facts
    assert (made.policy == service.version.label) == (kind == "better")
    assert share[0] <= made.pmf[made.arms.index("two")] <= share[1]
    assert evaluator.evaluate(now=world.now + 7.0) == []
