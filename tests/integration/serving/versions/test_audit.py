"""verify --deep and replay of a store with shadow, promoted and pinned decisions."""

import pytest

from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.replay import open_log, replay
from ragbandit.shared.types import PinnedArm
from tests.integration.serving.versions.test_serving import ARMS, PATIENT, kill, unkill
from tests.support.audits import verified
from tests.support.rollouts import do, shadow


@pytest.fixture
def mixed_world(make_world):
    """A world with decisions of every kind, all of which are learned."""
    world = make_world(arms=ARMS, policy={"name": "linucb"}, **PATIENT)
    world.judged(5)
    world.learn()
    shadow(world, name="second", policy={"name": "linucb"})
    world.judged(5)
    kill(world.database, "three")
    world.judged(4)
    unkill(world.database)
    world.judged(2)
    world.learn()
    return world


def checked(world):
    return world.router.verify(deep=True)


def test_a_store_with_versions_verifies(mixed_world):
    """Draws with a version in shadow and pinned arms are made again."""
    verdict = checked(mixed_world)
    assert (verdict.ok, verdict.deep_decisions) == (True, 16), verdict.notes


def test_replay_takes_no_pinned_row(mixed_world):
    """What the switch gave nobody drew, and it is left out."""
    rows = list(ledger_rows(mixed_world.ledger, since=None))
    assert sum(PinnedArm.key in row.decision.facts for row in rows) == 4
    replayed = replay(open_log(config=mixed_world.settings, mixed_arms=True), candidates=["uniform"])
    assert replayed.rows == 12
    assert any("4 decisions are left out: their arm was not drawn" in note for note in replayed.notes)


def test_a_promoted_version_verifies_by_its_own_label(make_world, other_processor):
    """The version's decisions name its ledger, whose policy reproduces their pmfs, also on another processor."""
    world = make_world(arms=ARMS, policy={"name": "uniform"}, **PATIENT)
    name = shadow(world, policy={"name": "linucb"})
    world.judged(3)
    do(world.database, "promote", name, force=True)
    world.router.refresh()
    world.judged(4)
    world.router.learn()
    verdict = checked(world)
    assert (verdict.ok, verdict.deep_decisions) == (True, 4), verdict.notes
    there = other_processor.call(verified, world.settings)
    assert (there.ok, there.deep_decisions) == (True, 4), there.notes
