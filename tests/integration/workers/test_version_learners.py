"""Learners of versions: which versions learn, whose ledgers are retired, and that nobody waits for a bad one."""

import time

import pytest

from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import PolicyVersion, candidate_note
from ragbandit.workers.chores.version_learning import VersionLearning, learning_versions
from ragbandit.workers.running.context import Context
from tests.integration.serving.versions.test_serving import ARMS, PATIENT
from tests.support import bad_policies
from tests.support.rollouts import add, do, shadow
from tests.support.waiting import until


def version(name, state, *, since=1.0, former=None):
    values = {"former": former, "revision": 1, "reason": "", "made_by": "", "made_at": 1.0}
    return PolicyVersion(name=name, base="main", label=f"main.{name}", state=state, since=since, **values)


def test_versions_that_learn():
    """Those in shadow, the champion, and the champion before this one learn."""
    there = [
        version("a", "draft"),
        version("b", "shadow"),
        version("e", "champion"),
        version("f", "retired", former="champion", since=1.0),
        version("g", "retired", former="champion", since=2.0),
        version("i", "retired"),
    ]
    assert [one.name for one in learning_versions(there)] == ["b", "e", "g"]


@pytest.fixture
def learning():
    """A function that starts the learners of a world's versions, as a worker does."""
    running = []

    def start(world):
        settings = world.settings.model_copy(
            update={"workers": world.settings.workers.model_copy(update={"sweep_interval_s": 0.05})}
        )
        context = Context(settings=settings, store=world.store, ledger=world.ledger, jobs=world.jobs)
        running.append(VersionLearning(context).start())
        return context

    yield start
    for one in running:
        one.close()


def test_each_version_learns_the_same_decisions_in_its_own_ledger(make_world, learning):
    """A candidate learns all earlier and later rows, and its snapshots reach the router; a faulty candidate blocks no
    other. When it is taken out, its ledger is retired, and no decision waits for it.
    """
    world = make_world(arms=ARMS, policy={"name": "uniform"}, **PATIENT)
    world.clock = time.time
    world.router.service.clock = time.time
    world.now = time.time()
    world.judged(4)
    learning(world)
    bad = add(world.database, name="bad", policy={"name": f"{bad_policies.__name__}:CannotLearn"}).name
    do(world.database, "shadow", bad)
    good = shadow(world, policy={"name": "linucb"})
    world.judged(3)
    ledger = Ledger(world.database, label=f"main.{good}")
    until(lambda: ledger.last_seq() == 7)

    def snapshot():
        world.router.refresh()
        return candidate_note(world.route().facts, good).snapshot

    until(lambda: snapshot().startswith(f"main.{good}-7-"))
    do(world.database, "retire", good)
    until(lambda: ledger.policy_row()["retired_at"] is not None)
    world.route()
    assert ledger.last_seq() == 7
    assert world.learn() > 0
