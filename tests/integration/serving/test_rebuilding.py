"""While a policy is learned again from its ledger, routers serve an interim policy and report it."""

from collections.abc import Collection
from pathlib import Path

import pytest

from ragbandit.router.serving.loading import snapshots as following
from ragbandit.router.storage.ledgers import ledger
from ragbandit.shared.types import ColdStartFloors
from tests.support.readiness import states_of


def lost(make_world, *, rows: int, database_url: str | None = None, kept: Collection[int] = (), **given):
    """A world that learned so many rows, lost its snapshots but those at these places, and was opened again."""
    world = make_world(database_url=database_url)
    world.judged(rows)
    world.learn()
    world.router.close()
    for file in Path(world.settings.snapshot_root).iterdir():
        if int(file.name.split("-")[1]) not in kept:
            file.unlink()
    return make_world(**{"database_url": database_url, "data_dir": world.settings.data_dir, **given})


def test_a_kept_snapshot_decides(make_world, database_url, monkeypatch):
    """With the newest snapshots gone the policy of one that is kept decides, until the learner has made a snapshot."""
    monkeypatch.setattr(ledger, "KEPT_EVERY", 10)
    monkeypatch.setattr(ledger, "TRIES", 1)
    monkeypatch.setattr(following, "FIRST_TRIES", 1)
    world = lost(make_world, rows=45, database_url=database_url, kept=[20, 30])
    serving = world.router.service.serving
    assert (serving.rebuilding, serving.last_seq) == (True, 30)
    decision = world.route()
    assert decision.facts["rebuilding"] is True
    assert world.router.state().rebuilding
    assert states_of(world.router.process.readiness)["policy"].startswith("rebuilding: main-30-")
    world.learn()
    assert not world.router.service.serving.rebuilding
    assert world.router.service.serving.last_seq == 45
    assert "rebuilding" not in world.route().facts
    assert "policy" not in states_of(world.router.process.readiness)
    assert world.router.verify(deep=True).ok


def test_the_fallback_arm_decides_where_nothing_is_left(make_world):
    """Without any snapshot the fallback arm has all but the floors, exactly as the row says."""
    world = lost(make_world, rows=100, policy={"fallback": "multi_step", "cold_start_outcomes": 5})
    assert world.router.service.serving.rebuilding
    floor = world.settings.policy.floor_of(3)
    for decision in (world.route() for _ in range(20)):
        pmf = dict(zip(decision.arms, decision.pmf, strict=True))
        assert pmf == pytest.approx(dict.fromkeys(decision.arms, floor) | {"multi_step": 1 - 2 * floor})
        assert decision.fault is None
        assert ColdStartFloors.key not in decision.facts
    world.learn()
    assert world.router.service.serving.last_seq == 100
    assert world.router.verify(deep=True).ok


def test_the_policy_of_before_decides_after_a_change(make_world, tmp_path):
    """After a change of params what was served before goes on, until the ledger is learned with the new ones."""
    world = make_world(data_dir=str(tmp_path))
    world.judged(6)
    world.learn()
    version = world.router.service.serving.version
    world.router.close()
    changed = make_world(data_dir=str(tmp_path), policy={"params": {"ridge": 3.0}})
    serving = changed.router.service.serving
    assert (serving.rebuilding, serving.version) == (True, version)
    changed.route()
    changed.learn()
    assert not changed.router.service.serving.rebuilding
    assert changed.router.service.serving.version != version
    assert changed.router.verify(deep=True).ok
