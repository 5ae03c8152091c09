"""Snapshot follower: the newest policy stays in use, and unusable snapshots are counted and skipped."""

import threading

from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.serving import process
from ragbandit.router.serving.loading import snapshots as snapshot_follower
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.tables import snapshots, updates
from ragbandit.shared.errors import SnapshotError


def test_a_slow_load_does_not_bring_back_an_older_policy(make_world, monkeypatch):
    """A thread that still loads a snapshot when another takes over a newer one does not put its own in that place."""
    world = make_world()
    load, loading, go_on = world.files.load, threading.Event(), threading.Event()
    first, second = (threading.Thread(target=world.router.refresh) for _ in range(2))

    def slow(info, **facts):
        policy = load(info, **facts)
        if info.last_seq == 2 and threading.current_thread() is first:
            loading.set()
            go_on.wait(20)
        return policy

    monkeypatch.setattr(world.files, "load", slow)
    world.judged(2)
    world.learner().drain()
    first.start()
    assert loading.wait(20)
    world.judged(3)
    world.learner().drain()
    second.start()
    second.join(0.2)
    go_on.set()
    first.join(20)
    second.join(20)
    assert world.router.service.serving.last_seq == 5


def test_a_policy_of_lost_rows_is_left(make_world):
    """If a failover or a restored backup loses the newest updates and snapshots, the router serves the newest policy
    that is left, although it has learned less than the one in use.
    """
    world = make_world()
    for count in (2, 3):
        world.judged(count)
        world.learn()
    assert world.router.service.serving.last_seq == 5
    world.write(updates.delete().where(updates.c.seq > 2))
    world.write(snapshots.delete().where(snapshots.c.last_seq > 2))
    world.router.refresh()
    assert world.router.service.serving.last_seq == 2


def test_refused_snapshots_are_counted_once_and_forgotten(make_world, monkeypatch):
    """Where no snapshot can be read each counts once, and the memory of them has an end."""
    monkeypatch.setattr(snapshot_follower, "REMEMBERED", 3)
    monkeypatch.setattr(process, "POLL_S", 60.0)  # the router itself must not look for snapshots meanwhile
    world = make_world()
    files = SnapshotFiles(world.settings.snapshot_root)
    decision = snapshot_follower.SnapshotLoader(
        world.database, settings=world.settings, files=files, encoder=world.router.encoder
    )
    decision.load_first()

    def broken(info, **_facts):
        raise SnapshotError(f"{info.version} is gone")

    monkeypatch.setattr(files, "load", broken)
    learner = world.learner()
    for _ in range(5):
        world.judged(1)
        learner.drain()
        decision.refresh()
        decision.refresh()
    assert (decision.refused, len(world.router.process.versions.snapshots.lags)) == (5, 0)
    monkeypatch.undo()
    monkeypatch.setattr(snapshot_follower, "LAGS", 2)
    read = []
    monkeypatch.setattr(Ledger, "feedback_times", lambda _self, **places: read.append(places) or [])
    assert world.router.refresh()
    assert read == [{"after": 3, "upto": 5}]
    assert len(decision._refused_lately) == 3
