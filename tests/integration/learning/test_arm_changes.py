"""Changed arms: every ledger restarts the arm at the right row, and a replay needs only the ledger."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from ragbandit.router.learning.audit.verify import verify
from ragbandit.router.learning.examples import updates_to_learn
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.monitoring.arm_changes import declare_change
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.base import apply_update
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.tables import snapshots
from ragbandit.shared.types import ArmName, PolicyLabel

ARM, OTHER = ArmName("single_step"), ArmName("no_retrieval")
SMALL = {"generator": "small", "arm": "single_step", "params": {}, "retriever": "bm25:1", "budget": {"seconds": 9}}
LARGE = SMALL | {"generator": "large"}


def declared(world, arm=ARM):
    world.now += 10
    declare_change(world.database, arm, actor="test", reason="another model", now=world.now)


def restarts(world, label=None) -> dict[int, list[str]]:
    ledger = world.ledger if label is None else Ledger(world.database, label=PolicyLabel(label))
    return {update.seq: list(update.restarts) for update in ledger.read(after=0) if update.restarts}


def live_sha(world) -> str:
    learner = world.learner()
    learner.catch_up()
    return world.sha256(learner.policy)


def lean_sha(world) -> str:
    policy = untrained_policy(world.settings.policy_definition)
    for update in updates_to_learn(world.ledger, policy=policy, after=0):
        apply_update(policy, update)
    return world.sha256(policy)


def answered(world, decision, made_by) -> None:
    """A worker's outcome and its rating."""
    outcome = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="Paris", steps=1.0)
    world.store.add_outcome(replace(outcome, run_by="worker", made_by=made_by))
    world.feedback(decision, rating=0.5)


def of_arm(world, *, ours: bool = False):
    """A decision that drew ARM."""
    return next(one for one in iter(lambda: world.route(ours=ours), None) if one.arm == ARM)


@pytest.mark.parametrize("policy", [{"name": "mba"}, {"name": "linucb", "incumbent": ARM}], ids=["mba", "incumbent"])
def test_declared_change(make_world, policy):
    """A change takes effect once, before the first later decision; earlier rows are closed; a replay gives the live
    policy.
    """
    world = make_world(policy=policy)
    world.judged(40)
    slow = [world.route() for _ in range(12)]
    world.learn()
    known = world.ledger.last_seq()
    declared(world)
    world.feedback(slow[0], reward=1.0)
    world.learn()
    assert restarts(world) == {}, "a decision of before says nothing of the arm as it is now"
    changed = live_sha(world)
    world.now += 10
    world.judged(9)
    world.learn()
    assert live_sha(world) != changed
    for decision in slow[1:]:
        world.feedback(decision, reward=1.0)
    world.judged(3)
    world.learn()
    assert restarts(world) == {known + 2: [ARM]}
    closed = {one.id for one in slow[1:] if one.arm == ARM}
    assert closed
    assert {one.id for one in slow if world.router.decision(one.id).state == "closed"} == closed
    assert live_sha(world) == world.sha256(world.replayed()) == lean_sha(world)
    assert verify(
        world.ledger, files=world.files, serving=untrained_policy(world.settings.policy_definition), deep=True
    ).ok
    world.write(snapshots.delete())
    assert live_sha(world) == world.sha256(world.replayed()), "and where no snapshot is left"
    declare_change(world.database, OTHER, actor="test", reason="there alone", now=1.0, label="later")
    later = Ledger(world.database, label=PolicyLabel("later"))
    row = {name: world.ledger.policy_row()[name] for name in ("algorithm", "params", "encoder_hash")}
    register_policy(world.database, label=later.label, now=world.now, **row)
    named = world.settings.policy.model_copy(update={"label": "later"})
    settings = world.settings.model_copy(update={"policy": named})
    again = make_learner(settings, later, files=world.files, clock=world.clock)
    while again.drain():
        pass
    assert list(restarts(world, "later").values()) == [[ARM, OTHER]], "one that begins later has its own"
    world.judged(1)
    world.learn()
    assert len(restarts(world)) == 1


@pytest.mark.parametrize("dies_at", ["append", "_apply"])
def test_killed_between(make_world, monkeypatch, dies_at):
    """A learner that dies before or after the append leaves the change to the next one, which takes it up once."""
    world = make_world()
    world.judged(30)
    world.learn()
    known = world.ledger.last_seq()
    declared(world)
    world.judged(5)
    with monkeypatch.context() as dying:
        broken = Ledger if dies_at == "append" else Learner

        def die(*_given, **_more):
            raise RuntimeError("killed")

        dying.setattr(broken, dies_at, die)
        with suppress(RuntimeError):
            world.learner().drain()
    world.expire_leases()
    assert restarts(world) == ({} if dies_at == "append" else {known + 1: [ARM]})
    world.judged(5)
    world.learn()
    assert restarts(world) == {known + 1: [ARM]}
    assert live_sha(world) == world.sha256(world.replayed()) == lean_sha(world)


def test_detected_change(make_world):
    """Outcomes of another generator restart the arm once; another index and other limits do not."""
    world = make_world()
    for made_by in (SMALL, SMALL | {"retriever": "bm25:2", "budget": {}}, SMALL):
        answered(world, of_arm(world, ours=True), made_by)
    slow = of_arm(world, ours=True)
    world.learn()
    known = world.ledger.last_seq()
    assert restarts(world) == {}
    world.now += 10
    answered(world, of_arm(world, ours=True), LARGE)
    world.learn()
    assert restarts(world) == {known + 1: [ARM]}
    assert json.loads(world.updates()[-1]["restarts"]) == [ARM]
    answered(world, slow, SMALL)
    world.now += 10
    for made_by in (SMALL, LARGE, SMALL):  # a worker of before goes on for a while
        answered(world, of_arm(world, ours=True), made_by)
    world.learn()
    assert restarts(world) == {known + 1: [ARM]}
    assert world.router.decision(slow.id).state == "closed"
    assert world.ledger.last_seq() == known + 4
    assert live_sha(world) == world.sha256(world.replayed())
