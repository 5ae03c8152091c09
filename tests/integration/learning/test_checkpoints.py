"""Checkpoints: a lost snapshot folder is rebuilt from the newest of them, and they stay spread over the ledger."""

import shutil
from pathlib import Path

import pytest

from ragbandit.router.learning.checkpoints import Checkpoints
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.storage.ledgers.chain import Chain

EVERY = {"learning": {"checkpoint_every": 10, "checkpoints_kept": 4, "batch": 5}}


def checkpoints_of(world):
    return Checkpoints(world.ledger, files=SnapshotFiles(world.settings.checkpoint_root))


def places(world):
    return [one.snapshot.last_seq for one in checkpoints_of(world).rows.newest()]


def counted(learner):
    """The learner, and the seqs of the updates that it will learn."""
    taken = []
    take = learner._take
    learner._take = lambda update: (taken.append(update.seq), take(update))
    return learner, taken


def test_made_every_so_many_updates(make_world):
    """One every `checkpoint_every` updates, with the sha256 of the policy and the chain at its place."""
    world = make_world(**EVERY)
    world.judged(25)
    world.learn()
    assert places(world) == [20, 10]
    chain = Chain(world.database, label=world.ledger.label)
    for known in checkpoints_of(world).rows.newest():
        made, _ = checkpoints_of(world).files.load(known.snapshot)
        assert world.sha256(made, last_seq=known.snapshot.last_seq) == known.snapshot.sha256
        assert known.chain == chain.at(known.snapshot.last_seq)


def test_a_lost_folder_is_rebuilt_from_the_newest(make_world):
    """With the snapshots gone the learner learns what came after the newest checkpoint, and has the same policy."""
    world = make_world(**EVERY)
    world.judged(27)
    world.learn()
    before = world.router.service.serving
    shutil.rmtree(world.settings.snapshot_root)
    learner, taken = counted(world.learner())
    learner.drain()
    assert taken == list(range(21, 28))
    assert world.sha256(learner.policy) == world.sha256(before.policy) == world.sha256(world.replayed())


@pytest.mark.parametrize("harm", ["cut", "swapped"])
def test_a_damaged_checkpoint_is_not_used(make_world, harm):
    """One whose files are cut, or are another policy's, is passed over for the one before it."""
    world = make_world(**EVERY)
    world.judged(27)
    world.learn()
    newest, older = (one.snapshot for one in checkpoints_of(world).rows.newest())
    files = checkpoints_of(world).files
    for ending in ("safetensors", "json"):
        one, other = (f"{files.root}/{info.version}.{ending}" for info in (newest, older))
        if harm == "swapped":
            shutil.copy(other, one)
        else:
            with open(one, "r+b") as file:
                file.truncate(40)
    shutil.rmtree(world.settings.snapshot_root)
    learner, taken = counted(world.learner())
    learner.drain()
    assert taken == list(range(11, 28))
    assert world.sha256(learner.policy) == world.sha256(world.replayed())


def test_all_lost_is_rebuilt_from_nothing_with_checkpoints_on_the_way(make_world):
    """Without any file the whole ledger is learned again; whoever is stopped meanwhile goes on where he was."""
    world = make_world(**EVERY)
    world.judged(33)
    world.learn()
    for root in (world.settings.snapshot_root, world.settings.checkpoint_root):
        shutil.rmtree(root)
    with world.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM checkpoints")
    stopped = world.learner()
    take = stopped._take

    def stop(update):
        if update.seq == 28:
            raise KeyboardInterrupt
        take(update)

    stopped._take = stop
    with pytest.raises(KeyboardInterrupt):
        stopped.drain()
    learner, taken = counted(world.learner())
    learner.drain()
    assert taken == list(range(21, 34))
    assert world.sha256(learner.policy) == world.sha256(world.replayed())


def test_they_are_few_and_spread(make_world):
    """Of more than `checkpoints_kept` those go that leave the smallest gaps, with their files; the newest stays."""
    world = make_world(learning={"checkpoint_every": 2, "checkpoints_kept": 4, "batch": 5})
    world.judged(32)
    world.learn()
    found = places(world)
    assert len(found) == 4
    assert found[0] == 32
    gaps = [before - after for before, after in zip(found, [*found[1:], 0], strict=True)]
    assert max(gaps) <= 16
    assert len({path.stem for path in Path(world.settings.checkpoint_root).iterdir()}) == 4


def test_the_verified_one_is_never_forgotten(make_world):
    """However many come after it, the newest checkpoint that a verify has passed stays."""
    world = make_world(learning={"checkpoint_every": 2, "checkpoints_kept": 3, "batch": 5})
    world.judged(4)
    world.learn()
    kept = checkpoints_of(world).rows.newest()[0].snapshot.version
    checkpoints_of(world).rows.mark_verified(kept, at=1.0, decided_before=1.0, decisions=4)
    world.judged(30)
    world.learn()
    assert kept in {one.snapshot.version for one in checkpoints_of(world).rows.newest()}


def test_a_place_that_cannot_be_written_costs_no_learning(make_world, tmp_path):
    """Where checkpoints cannot be written the learner says so and goes on."""
    (tmp_path / "file").write_text("")
    world = make_world(checkpoints=str(tmp_path / "file" / "checkpoints"), **EVERY)
    world.judged(25)
    assert world.learn() == 25
    assert places(world) == []
