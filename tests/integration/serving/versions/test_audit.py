"""verify --deep and replay of a store with shadow, canary, promoted and pinned decisions."""

import json

import pytest
from sqlalchemy import select

from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.replay import open_log, replay
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import CandidateNotes, PinnedArm
from tests.integration.serving.versions.test_serving import ARMS, FIXED_TWO, PATIENT, kill, unkill
from tests.support.rollouts import add, canary, do


@pytest.fixture
def mixed_world(make_world):
    """A world with decisions of every kind, all of which are learned."""
    world = make_world(arms=ARMS, policy={"name": "linucb"}, **PATIENT)
    world.judged(5)
    world.learn()
    second = add(world.database, name="second", policy={"name": "linucb"}).name
    do(world.database, "shadow", second)
    world.router.refresh()
    world.judged(5)
    deep = {"arms": {"deep": {"run_by": "caller"}}, "policy": {"name": "fixed", "params": {"arm": "deep"}}}
    name = canary(world, **deep)
    world.judged(10)
    kill(world.database, "three")
    world.judged(4)
    unkill(world.database)
    do(world.database, "rollback", name)
    canary(world, **FIXED_TWO)
    world.judged(10)
    world.learn()
    return world


def checked(world):
    return world.router.verify(deep=True)


def test_a_store_with_versions_verifies(mixed_world):
    """Draws, mixtures and the champion's part of them are made again; a mixture that was touched is found."""
    found = checked(mixed_world)
    assert (found.ok, found.deep_decisions) == (True, 34), found.notes
    with mixed_world.database.read() as connection:
        rows = connection.execute(select(decisions.c.id, decisions.c.facts)).all()
    key, facts = next((row.id, json.loads(row.facts)) for row in rows if '"champion"' in row.facts)
    facts[CandidateNotes.key]["weight"] = 0.1
    mixed_world.write(decisions.update().where(decisions.c.id == key).values(facts=json.dumps(facts)))
    found = checked(mixed_world)
    assert not found.ok
    assert any("mixture" in note for note in found.notes)


def test_replay_takes_the_mixtures_propensities_and_no_pinned_row(mixed_world):
    """A log's rows have the pmf that was drawn from; what the switch gave nobody drew, and it is left out."""
    rows = list(ledger_rows(mixed_world.ledger, since=None))
    assert sum(PinnedArm.key in row.decision.facts for row in rows) == 4
    for row in rows:
        place = row.decision.arms.index(row.decision.arm)
        assert row.decision.propensity == row.decision.pmf[place]
    found = replay(open_log(config=mixed_world.settings, mixed_arms=True), candidates=["uniform"])
    assert found.rows == 30
    assert any("4 decisions are left out: their arm was not drawn" in note for note in found.notes)


def test_a_promoted_version_verifies_by_its_own_label(make_world):
    """The version's decisions name its ledger, whose policy reproduces their pmfs."""
    world = make_world(arms=ARMS, policy={"name": "uniform"}, **PATIENT)
    name = canary(world, policy={"name": "linucb"})
    world.judged(3)
    do(world.database, "promote", name, force=True)
    world.router.refresh()
    world.judged(4)
    world.router.learn()
    found = checked(world)
    assert (found.ok, found.deep_decisions) == (True, 4), found.notes
