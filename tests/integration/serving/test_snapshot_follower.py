"""Snapshot follower: the newest policy stays, whoever loads it, and what cannot be used is counted and forgotten."""

import threading

from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.serving.following import snapshots as snapshot_follower
from ragbandit.router.serving.following.snapshots import SnapshotFollower
from ragbandit.shared.errors import SnapshotError


class Following:
    """A follower of a world's ledger, and what it serves."""

    def __init__(self, world):
        own = world.router.following.snapshots
        self.follower = SnapshotFollower(
            world.ledger,
            files=SnapshotFiles(world.settings.snapshot_root),
            settings=world.settings,
            fresh=own.fresh,
            encoder=world.router.encoder,
        )
        self.serving = self.follower.first()

    def swap(self, serving):
        self.serving = serving

    def refresh(self):
        self.follower.refresh(lambda: self.serving, swap=self.swap)


def test_a_slow_load_does_not_bring_back_an_older_policy(make_world, monkeypatch):
    """A thread that still loads a snapshot when another takes over a newer one does not put its own in that place."""
    world = make_world()
    found = Following(world)
    load, loading, go_on = found.follower.files.load, threading.Event(), threading.Event()

    def slow(info, **facts):
        policy = load(info, **facts)
        if info.last_seq == 2:
            loading.set()
            go_on.wait(20)
        return policy

    world.judged(2)
    world.learner().drain()
    monkeypatch.setattr(found.follower.files, "load", slow)
    first, second = threading.Thread(target=found.refresh), threading.Thread(target=found.refresh)
    first.start()
    assert loading.wait(20)
    world.judged(3)
    world.learner().drain()
    second.start()
    second.join(0.2)
    go_on.set()
    first.join(20)
    second.join(20)
    assert found.serving.last_seq == 5


def test_refused_snapshots_are_counted_once_and_forgotten(make_world, monkeypatch):
    """Where no snapshot can be read each counts once, and the memory of them has an end."""
    monkeypatch.setattr(snapshot_follower, "REMEMBERED", 3)
    world = make_world()
    found = Following(world)

    def broken(info, **_facts):
        raise SnapshotError(f"{info.version} is gone")

    monkeypatch.setattr(found.follower.files, "load", broken)
    learner = world.learner()
    for _ in range(5):
        world.judged(1)
        learner.drain()
        found.refresh()
        found.refresh()
    assert found.follower.refused == 5
    assert len(found.follower._refused_lately) == 3
