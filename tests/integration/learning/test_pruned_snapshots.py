"""Rows of `snapshots` have a cap: the newest are kept, and what the others decided is still verified."""

from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from ragbandit.router.learning import publishing
from ragbandit.router.learning.audit import checks
from ragbandit.router.storage.ledgers import ledger
from ragbandit.router.storage.sql.tables import decisions, snapshots, updates
from tests.support.audits import assert_compared, verified

KEPT = 2


@pytest.fixture
def few(monkeypatch):
    """Two rows are kept; a learner prunes at its first snapshot."""
    keep_few(monkeypatch)


def keep_few(patch):
    patch.setattr(ledger, "SNAPSHOT_ROWS", KEPT)
    patch.setattr(checks, "SNAPSHOT_ROWS", KEPT)


def verified_with_few(settings):
    with pytest.MonkeyPatch.context() as patch:
        keep_few(patch)
        return verified(settings)


def rows(world) -> int:
    with world.database.read() as connection:
        return connection.execute(select(func.count()).select_from(snapshots)).scalar_one()


def learned(world, *, rounds=5):
    """Rounds of three decisions, each by the policy that has learned the earlier ones; returns the decisions."""
    made = []
    for _ in range(rounds):
        made += world.judged(3)
        world.now += 1
        assert world.learn() == 3
    return made


@pytest.fixture
def world(few, make_world):
    made = make_world()
    made.made = learned(made)
    return made


def test_a_learner_goes_on_pruning(few, make_world, monkeypatch):
    """A learner prunes again after FORGET_EVERY snapshots."""
    monkeypatch.setattr(publishing, "FORGET_EVERY", 4)
    world = make_world(learning={"snapshot_interval_s": 0.0})
    one = world.learner()
    for _ in range(9):
        world.judged(1)
        one.drain()
    assert rows(world) == KEPT


def test_the_deep_check_needs_no_row(world, make_world):
    """Every pmf is made again, also of versions whose rows are gone, and a router that starts serves the newest."""
    before = world.router.verify()
    verdict = world.router.verify(deep=True)
    assert verdict.ok
    assert (verdict.notes, verdict.deep_decisions) == ([], 15)
    assert verdict.replay_sha256 == before.replay_sha256
    again = make_world(data_dir=world.settings.data_dir)
    assert again.route().version == world.router.service.serving.version


def test_another_processor_needs_no_row(world, other_processor):
    """Another processor gives versions other names, and makes the pmfs of pruned versions again."""
    verdict = other_processor.call(verified_with_few, world.settings)
    assert_compared(verdict)
    assert verdict.deep_decisions == 15


def test_a_changed_pmf_is_found(world):
    """A pmf that a version without a row did not give is found."""
    early, later = world.made[3], world.made[6]
    assert not {early.version, later.version} & {info.version for info in world.ledger.latest_snapshots(limit=9)}
    world.write(update(decisions).where(decisions.c.id == early.id).values(version=later.version))
    verdict = world.router.verify(deep=True)
    assert verdict.deep_mismatches == 1
    assert early.id in "\n".join(verdict.notes)


def test_rounding_changes_the_name_of_a_version(world):
    """A pruned version may bear the sha256 of another processor: its pmfs are what counts."""
    version = f"main-{world.made[6].version.split('-')[1]}-0123456789ab"
    world.write(update(decisions).where(decisions.c.version == world.made[6].version).values(version=version))
    verdict = world.router.verify(deep=True)
    assert (verdict.ok, verdict.deep_decisions) == (True, 15), verdict.notes


@pytest.mark.parametrize("version", ["main-3-0123456789ab", "main-15-0123456789ab", "main-6-invented"])
def test_an_invented_version_is_found(world, version):
    """A version that no policy of the ledger gives is found, whether its row could have been pruned or not."""
    world.write(update(decisions).where(decisions.c.id == world.made[6].id).values(version=version))
    verdict = world.router.verify(deep=True)
    assert verdict.deep_mismatches == 1
    assert version in "\n".join(verdict.notes)


def test_some_are_kept_longer(make_world, monkeypatch, database_url):
    """The newest KEPT_MOST of every KEPT_EVERY-th update stay, rows and files, and a learner goes on from them."""
    for name, value in (("SNAPSHOT_ROWS", 3), ("KEPT_EVERY", 4), ("KEPT_MOST", 2), ("TRIES", 1)):
        monkeypatch.setattr(ledger, name, value)
    monkeypatch.setattr(checks, "SNAPSHOT_ROWS", 3)
    monkeypatch.setattr(publishing, "KEPT_MOST", 2)
    monkeypatch.setattr(publishing, "FORGET_EVERY", 2)
    world = make_world(database_url=database_url, learning={"snapshots_kept": 1, "batch": 3})
    for _ in range(6):
        world.judged(3)
        world.learn()
    places = [info.last_seq for info in world.ledger.latest_snapshots(limit=99)]
    assert {16, 12} <= set(places)
    assert not {8, 4} & set(places)
    files = {int(file.name.split("-")[1]) for file in Path(world.files.root).iterdir()}
    assert files == {18, 16, 12}
    for file in Path(world.files.root).glob("main-1[86]-*"):
        file.unlink()
    learner, taken = world.learner(), []
    apply = learner._apply
    learner._apply = lambda update: (taken.append(update.seq), apply(update))
    learner.drain()
    assert taken == [13, 14, 15, 16, 17, 18]
    assert world.sha256(learner.policy) == world.sha256(world.replayed())
    assert world.router.verify(deep=True).ok


@pytest.mark.parametrize("values", [{"quality": 0.9, "value": 0.9}, {"propensity": 0.123}], ids=str)
def test_a_changed_update_is_found(make_world, database_url, values):
    """However often the ledger was verified before, a row of the past that was changed is found."""
    world = make_world(database_url=database_url)
    world.judged(9)
    world.learn()
    assert world.router.verify().ok
    world.write(update(updates).where(updates.c.seq == 4).values(**values))
    assert not world.router.verify().ok
