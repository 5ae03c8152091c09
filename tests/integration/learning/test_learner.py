"""Learning on SQLite and PostgreSQL: when a decision closes, what it teaches, and who may teach."""

import json
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from sqlalchemy import select

from ragbandit.router.learning.snapshots import pack
from ragbandit.router.learning.status import quarantined_decisions
from ragbandit.router.policies.algorithms.mba import MbaRag
from ragbandit.router.storage.jobs.answers import waiting_ids
from ragbandit.router.storage.ledgers.closing import ClosingRule
from ragbandit.router.storage.sql.tables import decisions, feedback, leases
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import NO_TEXT, Decision
from ragbandit.workers.chores.recovery import recover
from tests.conftest import EPOCH, on_sqlite

RULE = ClosingRule(wait_s=0.0, expire_s=1e6)


def raw(vector) -> bytes:
    return np.asarray(vector, dtype="<f4").tobytes()


# ---------------------------------------------------------------------------------------- when a decision closes


def test_first_feedback_closes(make_world):
    """With wait_s 0 the first feedback is learned; what came after it, also after the learner, is late and counted."""
    world = make_world()
    decision = world.route()
    world.outcome(decision)
    world.feedback(decision, rating=0.25, feedback_id="first")
    world.now += 1
    world.feedback(decision, rating=1.0, feedback_id="second")
    assert world.learn() == 1
    (row,) = world.updates()
    assert json.loads(row["feedback_ids"]) == ["first"]
    assert (row["quality"], row["cost"], row["value"]) == (0.25, 1.0, 0.25 - 0.05)
    assert (row["preset"], row["source"]) == ("rating", "explicit")
    assert world.router.decision(decision.id).late == {"second"}
    before = world.sha256(world.replayed())
    world.feedback(decision, reward=-1.0)
    assert world.learn() == 0
    assert world.sha256(world.replayed()) == before
    counters = world.counters()
    assert (counters.feedback, counters.late_feedback, counters.learned) == (3, 2, 1)


@pytest.mark.parametrize(
    ("how", "quality"),
    [("first", -0.5), ("last", -0.25), ("mean", -0.0625), ("sum", -0.25), ("min", -0.5), ("max", 0.75)],
)
def test_window_aggregates(make_world, how, quality):
    """Feedback of the window becomes one reward by the configured aggregate, negatives included. What comes after the
    window, though before the learner looks, is late.
    """
    world = make_world(learning={"wait_s": 60.0, "aggregate": how})
    decision = world.route()
    for number, reward in enumerate((-0.5, 0.75, -0.25, -0.25)):
        world.now += 1
        world.feedback(decision, reward=reward, feedback_id=f"f{number}")
    assert world.learn() == 0
    world.now = EPOCH + 61
    world.feedback(decision, reward=-1.0, feedback_id="out")
    assert world.learn() == 1
    (row,) = world.updates()
    assert (row["quality"], row["value"], row["preset"]) == (quality, quality, "reward")
    assert json.loads(row["feedback_ids"]) == ["f0", "f1", "f2", "f3"]
    assert world.router.decision(decision.id).late == {"out"}


@pytest.mark.parametrize("default", [None, -0.5])
@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_default_reward(make_world, wait_s, default):
    """A decision that was not judged in time is learned with the default reward and flagged; without a default reward
    it is closed and not learned.
    """
    world = make_world(learning={"wait_s": wait_s, "expire_s": 100.0, "default_reward": default})
    decision = world.route()
    world.now += 100
    assert world.learn() == 1
    rows = [(row["value"], row["source"], row["preset"], row["feedback_at"]) for row in world.updates()]
    assert rows == ([] if default is None else [(default, "default", "default", None)])
    assert world.router.decision(decision.id).state == ("closed" if default is None else "defaulted")
    assert (world.counters().defaulted, world.counters().learned) == (len(rows), 0)


@pytest.mark.parametrize("default", [None, -0.5])
@pytest.mark.parametrize(("value", "state"), [({"label": ["Paris"]}, "closed"), ({"rating": 0.75}, "learned")])
def test_an_answer_of_images_is_learned_from_ratings_only(make_world, value, state, default):
    """An answer without a text gets no quality from a label, and no default reward; a rating teaches as always."""
    world = make_world(learning={"default_reward": default})
    decision = world.route(ours=True)
    world.outcome(decision, answer="", stop_reason=NO_TEXT, by_worker=True)
    world.feedback(decision, **value)
    assert world.learn() == 1
    assert world.router.decision(decision.id).state == state
    assert [row["quality"] for row in world.updates()] == ([0.75] if state == "learned" else [])


@pytest.mark.parametrize("comes", [True, False])
@pytest.mark.parametrize("value", [{"label": ["Paris"]}, {"reward": 0.95}])
def test_feedback_waits_for_our_outcome(make_world, value, comes):
    """Feedback on an answer of ours waits for the outcome, a raw reward too; if none comes in time, it is late."""
    world = make_world(learning={"expire_s": 100.0})
    decision = world.route(ours=True)
    world.feedback(decision, **value, feedback_id="f1")
    assert (world.learn(), world.counters().waiting) == (0, 1)
    if comes:
        world.outcome(decision, by_worker=True)
    else:
        world.now += 101
    assert world.learn() == 1
    record = world.router.decision(decision.id)
    if comes:
        assert (world.updates()[0]["value"], record.late) == (1.0 - 0.05, set())
    else:
        assert (record.state, record.reason, record.late) == ("closed", "feedback without outcome", {"f1"})


@pytest.mark.parametrize("default", [None, -0.5])
def test_window_of_our_own_waits_for_the_answer(make_world, default):
    """With a window a decision that our workers run stays open, and in their queue, until time has run out."""
    learning = {"wait_s": 60.0, "expire_s": 1000.0, "default_reward": default}
    world = make_world(learning=learning)
    ours, theirs = world.route(ours=True), world.route()
    world.now = EPOCH + 61
    assert world.learn() == 1
    state = "closed" if default is None else "defaulted"
    assert (world.router.decision(theirs.id).state, world.router.decision(ours.id).state) == (state, "waiting")
    assert waiting_ids(world.router.database, limit=10) == [ours.id]
    assert recover(world.router.database, jobs=world.jobs, settings=world.settings.judge, now=world.now) == 1
    assert world.jobs.enqueued == [ours.id]
    world.now = EPOCH + 1059
    assert world.learn() == 0
    world.now = EPOCH + 1060
    assert world.learn() == 1
    assert world.router.decision(ours.id).state == state
    assert waiting_ids(world.router.database, limit=10) == []


def held_up(world) -> Decision:
    """A decision that is looked at whenever the learner looks, and must wait on: its reward came after its window."""
    decision = world.route()
    world.now += 61
    world.feedback(decision, reward=0.5)
    world.now -= 61
    return decision


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_rows_that_wait_hold_up_nobody(make_world, batch):
    """A page full of decisions that must wait on does not keep the learner from those behind it."""
    world = make_world(learning={"wait_s": 60.0, "batch": batch})
    for _ in range(3):
        held_up(world)
    behind = world.judged(2)
    held_up(world)
    world.now += 1
    behind += world.judged(2)
    world.now = EPOCH + 62
    assert world.learn() == 4
    assert {row["decision_id"] for row in world.updates()} == {decision.id for decision in behind}
    assert world.counters().waiting == 4
    assert world.learn() == 0


# ------------------------------------------------------------------------------------------------ poisoned rows

INF, NAN = float("inf"), float("nan")
POISON = [
    *((decisions, "propensity", value) for value in (0.0, 1.5, -0.5, INF, NAN)),
    *((decisions, "features", given) for given in (raw([NAN] * 8), raw([INF] * 8), None, b"abc", raw([1.0] * 3))),
    *((decisions, "text", text) for text in ("", " \n")),
    *((decisions, "arm", "nobody"), (decisions, "pmf", "[0.5,")),
    *((feedback, "value", value) for value in ("NaN", "-Infinity", "0.5 or so", '"much"')),
]


def test_poisoned_rows_are_alone(make_world, database_url):
    """Every poisoned row of a batch is quarantined by its field's name, and its neighbours in the batch are learned."""
    # SQLite stores no NaN in a column that must not be null: see test_store
    kinds = [kind for kind in POISON if kind[2] is not NAN or not database_url.startswith("sqlite")]
    world = make_world(database_url=database_url)
    *poisoned, last = world.judged(2 * len(kinds) + 1)
    good, poisoned = [last, *poisoned[::2]], poisoned[1::2]
    wanted = {}
    for decision, (table, column, value) in zip(poisoned, kinds, strict=True):
        key = table.c.id if table is decisions else table.c.decision_id
        world.write(table.update().where(key == decision.id).values({column: value}))
        wanted[decision.id] = column if table is decisions else "feedback.value"
    assert world.learn() == len(good) + len(poisoned)
    assert {row["decision_id"] for row in world.updates()} == {decision.id for decision in good}
    assert {row["decision_id"]: row["field"] for row in quarantined_decisions(world.ledger)} == wanted
    counters = world.counters()
    assert (counters.learned, counters.quarantined, counters.waiting) == (len(good), len(poisoned), 0)
    assert counters.balanced
    good += world.judged(2)
    assert world.learn() == 2
    assert [row["seq"] for row in world.updates()] == list(range(1, len(good) + 1))
    assert {row["decision_id"] for row in world.updates()} == {decision.id for decision in good}


def test_decisions_without_text_are_one_line_of_the_log(make_world, caplog):
    """Decisions that cannot be learned are logged in one line with their number and the first ids, not a line each."""
    world = make_world(learning={"batch": 4})
    ids = [decision.id for decision in world.judged(10)]
    world.write(decisions.update().values(text=""))
    assert world.learn() == 10
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.getMessage() == "10 decisions cannot be learned; see `ragbandit feedback quarantined`"
    assert line.decisions == ids[:5]


# ------------------------------------------------------------------------------------------------- leases


def test_one_learner_at_a_time(make_world, database_url):
    """A second learner learns nothing while the first holds the lease. The next goes on at once where the lease was
    given back, as after a drain, and when it has run out.
    """
    world = make_world(database_url=database_url, learning={"lease_s": 1000.0})
    first, second = world.learner(), world.learner()
    world.judged(2)
    assert first.drain() == 2
    for ended in (world.expire_leases, lambda: world.ledger.release(holder=first.holder)):
        world.judged(1)
        assert world.ledger.acquire(holder=first.holder, lease_s=1000.0)
        before = world.ledger.last_seq()
        assert (second.drain(), world.ledger.last_seq()) == (0, before)
        ended()
        assert (second.drain(), first.drain()) == (1, 0)
    assert world.sha256(second.policy) == world.sha256(first.policy) == world.sha256(world.replayed())


def test_lease_by_the_databases_clock(make_world, database_url):
    """A learner whose clock is an hour ahead, and that dies, keeps the others out for lease_s at most."""
    world = make_world(database_url=database_url, learning={"lease_s": 10.0})
    world.judged(1)
    now = time.time()
    world.now = now + 3600
    assert world.learner()._acquire(0)
    with world.database.read() as connection:
        assert now < connection.execute(select(leases.c.expires_at)).scalar_one() < time.time() + 10.1
    assert world.learner().drain() == 0
    world.expire_leases()
    assert world.learner().drain() == 1


@on_sqlite
def test_lease_lost_on_the_way(make_world, database_url):
    """A learner that loses its lease between reading and appending appends nothing and goes on from the other's."""
    world = make_world(database_url=database_url, learning={"lease_s": 10.0})
    first, second = world.learner(), world.learner()
    world.judged(3)
    first.drain()
    world.judged(4)
    learned: list[int] = []

    class Interrupted(type(world.ledger)):
        def append(self, *given, **named):
            if not learned:
                world.now += 11
                world.expire_leases()
                learned.append(second.drain())
            super().append(*given, **named)

    first.ledger = Interrupted(world.database, label=world.ledger.label)
    assert first.drain() == 0
    assert learned == [4]
    assert [row["seq"] for row in world.updates()] == list(range(1, 8))
    assert first.last_seq == second.last_seq == 7
    assert world.sha256(first.policy) == world.sha256(second.policy) == world.sha256(world.replayed())
    assert world.counters().balanced


@on_sqlite
def test_append_elsewhere_is_refused(make_world, database_url):
    """An append that does not begin where the ledger ends is refused and leaves nothing."""
    world = make_world(database_url=database_url)
    learner = world.learner()
    world.judged(2)
    learner.drain()
    world.judged(1)
    batch = learner._next_batch(world.now)
    batch.updates = [replace(batch.updates[0], seq=5)]
    assert world.ledger.acquire(holder=learner.holder, lease_s=10.0)
    with pytest.raises(Conflict, match="the ledger ends at 2"):
        world.ledger.append(batch)
    assert world.ledger.last_seq() == 2
    assert world.counters().waiting == 1


# ------------------------------------------------------------------------------------------ crashes and snapshots


@on_sqlite
def test_crash_between_append_and_snapshot(make_world, database_url):
    """A learner that dies after the append costs nothing: the next one has the same policy and publishes it."""
    world = make_world(database_url=database_url, learning={"lease_s": 10.0})
    world.judged(3)
    world.learn()
    world.judged(5)
    dying = world.learner()
    dying.publish = Mock(side_effect=RuntimeError("killed"))
    with pytest.raises(RuntimeError, match="killed"):
        dying.drain()
    assert (world.ledger.last_seq(), world.router.status().snapshot_last_seq) == (8, 3)
    world.now += 11
    world.expire_leases()
    heir = world.learner()
    assert heir.drain() == 0
    assert heir.last_seq == 8
    assert world.sha256(heir.policy) == world.sha256(world.replayed())
    assert world.router.status().snapshot_last_seq == 8
    world.router.refresh()
    assert world.router.service.serving.last_seq == 8
    assert world.sha256(world.router.service.serving.policy) == world.sha256(world.replayed())


def test_broken_lesson_leaves_no_half_policy(make_world, monkeypatch):
    """A policy that fails in the middle of an update is discarded; the next drain begins with a valid one."""
    world = make_world()
    learner, learn, broken = world.learner(), MbaRag.learn, []
    world.judged(3)
    assert learner.drain() == 3
    world.judged(4)

    def breaks_once(policy, update):
        learn(policy, update)
        if update.seq == 5 and not broken:
            broken.append(update.seq)
            raise ZeroDivisionError("half done")

    monkeypatch.setattr(MbaRag, "learn", breaks_once)
    with pytest.raises(ZeroDivisionError):
        learner.drain()
    assert world.ledger.last_seq() == 7
    assert learner.drain() == 0
    assert (learner.last_seq, sum(learner.policy.seen.values()), learner.refused) == (7, 7, 0)
    assert world.sha256(learner.policy) == world.sha256(world.replayed())
    world.router.refresh()
    assert world.router.service.serving.last_seq == 7
    assert world.router.verify(deep=True).ok


DAMAGES = {
    "deleted": Path.unlink,
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "flipped": lambda file: file.write_bytes(file.read_bytes().replace(b"a", b" ")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_snapshots_lost(make_world, damage):
    """Snapshots that are lost or damaged are made again from the ledger, to the same bytes."""
    world = make_world()
    for count in (3, 4):
        world.judged(count)
        world.learn()
    (version,) = [info.version for info in world.ledger.latest_snapshots(limit=1)]
    good = (Path(world.files.root) / f"{version}.safetensors").read_bytes()
    for file in Path(world.files.root).iterdir():
        damage(file)
    learner = world.learner()
    assert learner.drain() == 0
    assert learner.last_seq == 7
    assert world.sha256(learner.policy) == world.sha256(world.replayed())
    assert (Path(world.files.root) / f"{version}.safetensors").read_bytes() == good
    assert world.router.verify(deep=True).ok


def test_forged_snapshot(make_world, caplog):
    """A snapshot that a stranger wrote whole, with a sha256 of its own, is refused, counted, and made again."""
    world = make_world()
    world.judged(5)
    learner = world.learner()
    learner.drain()
    (live,) = world.ledger.latest_snapshots(limit=1)
    stranger, tensors, described = pack(
        MbaRag(), label=live.policy, last_seq=live.last_seq, encoder_hash=live.encoder_hash, now=0.0
    )
    world.files.write(replace(stranger, version=live.version), tensors, described)
    assert not world.router.verify().ok
    other = make_world()
    assert other.router.service.serving.last_seq == 0
    assert other.router.process.versions.snapshots.refused == 1
    assert f"{live.version} is not the snapshot that the learner made" in caplog.records[-1].reason
    assert other.jobs.notified == 1
    assert learner.drain() == 0
    other.router.refresh()
    assert other.sha256(other.router.service.serving.policy) == other.sha256(other.replayed())
    assert other.router.verify(deep=True).ok


def test_params_change(make_world, database_url):
    """After a change of the policy's params the whole ledger is learned again with the new ones."""
    world = make_world(database_url=database_url)
    world.judged(6)
    world.learn()
    old = world.sha256(world.replayed())
    world.close()
    changed = make_world(now=EPOCH + 1, database_url=database_url, policy={"params": {"ridge": 3.0}})
    changed.learn()
    assert changed.router.service.serving.last_seq == 6
    served = changed.sha256(changed.router.service.serving.policy)
    assert served == changed.sha256(changed.replayed()) != old
    assert changed.router.verify(deep=True).ok


def test_label_comes_back(make_world):
    """A label that comes back inherits what was decided and judged meanwhile under another one."""
    world = make_world()
    world.judged(2)
    open_before = world.route()
    world.learn()
    world.close()
    other = make_world(policy={"label": "second"})
    other.judged(3)
    other.feedback(open_before, reward=0.5)
    other.close()
    back = make_world()
    assert back.counters().balanced
    assert back.learn() == 4
    assert (back.counters().learned, back.counters().waiting) == (6, 0)


def test_other_encoder(make_world):
    """A ledger that was learned with one encoder is refused to a router with another one; under a new label it is fine:
    what the old one decided is closed.
    """
    world = make_world()
    world.judged(2)
    with pytest.raises(Conflict) as caught:
        make_world(encoder={"dimension": 16})
    assert caught.value.field == "encoder"
    assert "policy.label" in caught.value.remedy
    world.close()
    other = make_world(policy={"label": "wide"}, encoder={"dimension": 16})
    new = other.judged(1)
    assert other.learn() == 3
    assert [row["decision_id"] for row in other.updates()] == [new[0].id]
    assert (other.counters().closed, other.counters().balanced) == (2, True)


def test_policy_without_features_minds_no_encoder(make_world):
    """A ledger of a policy that needs no features goes on under another encoder, from the same snapshot."""
    world = make_world(policy={"name": "uniform"})
    world.judged(2)
    world.learn()
    world.close()
    other = make_world(policy={"name": "uniform"}, encoder={"dimension": 16})
    assert other.router.service.serving.last_seq == 2
    other.judged(3)
    assert other.learn() == 3
    assert other.ledger.policy_row()["encoder_hash"] == ""
    assert (other.counters().learned, other.router.verify(deep=True).ok) == (5, True)


def test_baseline_first(make_world):
    """What was logged under `uniform` is learned by `mba` under the same label, and back, where the encoder is one."""
    for at, (name, count, seen) in enumerate([("uniform", 4, 4), ("mba", 2, 6), ("uniform", 1, 7)]):
        world = make_world(now=EPOCH + at, policy={"name": name})
        world.judged(count)
        world.learn()
        assert sum(world.router.service.serving.policy.seen.values()) == seen
        assert world.router.verify(deep=True).ok
        world.close()
