"""`verify` finds whatever was changed behind the system's back, and says where."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update

from ragbandit.router.learning.audit.verify import verify
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies.algorithms.mba import MbaRag
from ragbandit.router.policies.draw import draw_index
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.tables import decisions, snapshots, updates
from ragbandit.shared.errors import PolicyFault
from tests.conftest import EPOCH, World
from tests.support.audits import assert_compared, verified


@pytest.fixture(scope="module")
def learned(module_settings):
    """The folder of a world: twelve decisions by the fresh policy, learned; twelve by that which learned them, too."""
    with closing(World(module_settings())) as new_world:
        for _ in range(2):
            new_world.judged(12)
            new_world.now += 1
            assert new_world.learn() == 12
        new_world.route()
    return new_world.settings.data_dir


@pytest.fixture
def world(make_world, learned, tmp_path):
    shutil.copytree(learned, tmp_path / "data")
    return make_world(now=EPOCH + 2)


def change(world, table, where, **values) -> None:
    world.write(update(table).where(where).values(**values))


def refused(world, *words, deep=False):
    """The verdict is no, and every word stands in its notes."""
    verdict = world.router.verify(deep=deep)
    assert not verdict.ok
    notes = "\n".join(verdict.notes)
    for word in words:
        assert word in notes
    return verdict


def first(world):
    return world.router.decision(world.updates()[0]["decision_id"]).decision


def test_clean(world):
    """A system that nobody touched verifies, also deep, with every row checked."""
    verdict = world.router.verify(deep=True)
    assert verdict.ok
    assert verdict.sentence == "all good: 25 decisions, 24 learned; the policy is what its ledger says"
    assert verdict.notes == []
    assert (verdict.decisions, verdict.updates, verdict.deep_decisions) == (25, 24, 25)
    assert verdict.replay_sha256 == verdict.live_sha256 == world.sha256(world.replayed())


def test_another_processor_verifies(world, other_processor):
    """A processor with other rounding finds no fault in a ledger that nobody touched, and finds a changed reward."""
    assert_compared(other_processor.call(verified, world.settings))
    change(world, updates, updates.c.seq == 3, value=0.987, quality=0.987)
    verdict = other_processor.call(verified, world.settings)
    assert (verdict.ok, verdict.within_rounding) == (False, None)


def test_faulty_policy_verifies(make_world):
    """A router verifies before its first decision, and with decisions of the fallback of a policy that broke."""
    world = make_world(policy={"fallback": "multi_step"})
    assert world.router.verify(deep=True).ok

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    world.router.service.serving.policy.pmf = broken
    assert world.route().fault == "RuntimeError: broken"
    assert world.router.verify(deep=True).ok


def other_arm(decision):
    return next(arm for arm in decision.arms if arm != decision.arm)


def swappable(world):
    """A learned decision whose seed draws another arm from another pmf, however high the floors of the others are."""
    decision = (world.router.decision(row["decision_id"]).decision for row in world.updates())
    return next(one for one in decision if 0.05 < (one.seed >> 11) * 2.0**-53 < 0.95)


def swapped(decision):
    """A pmf above the floor, of the arms that were offered, from which the decision's seed draws another one."""
    pmfs = ([0.96, 0.02, 0.02], [0.02, 0.96, 0.02], [0.02, 0.02, 0.96])
    return json.dumps(next(pmf for pmf in pmfs if decision.arms[draw_index(pmf, seed=decision.seed)] != decision.arm))


@pytest.mark.parametrize(
    ("change_of", "word"),
    [
        (lambda decision: {"pmf": swapped(decision)}, "the draw gives"),
        (lambda decision: {"propensity": decision.propensity * (1 + 2**-52)}, "propensity"),
        (lambda decision: {"arm": other_arm(decision)}, "the row says"),
        (lambda decision: {"seed": str(decision.seed ^ 1)}, "seed"),
    ],
    ids=["pmf", "propensity", "arm", "seed"],
)
def test_a_changed_draw(world, change_of, word):
    """A pmf that gives another draw, a propensity in the last bit, another arm and another seed are found."""
    decision = swappable(world)
    change(world, decisions, decisions.c.id == decision.id, **change_of(decision))
    assert refused(world, decision.id, word).propensity_mismatches == 1


@pytest.mark.parametrize("pmf", ["[0.5, 0.6, 0.1]", "[0.5, 0.5]", "[NaN, 0.5, 0.5]", "[1.5, -0.5, 0.0]", "[0.5,"])
def test_pmf_is_none(world, pmf):
    """A pmf that is not a distribution over the arms, or is unreadable, is reported with its decision."""
    decision = first(world)
    change(world, decisions, decisions.c.id == decision.id, pmf=pmf)
    refused(world, decision.id, deep=True)


def test_pmf_same_draw(world):
    """A pmf that was bent without changing the draw is found by the propensity, and deep by the policy."""
    for row in world.updates()[12:]:  # not by the fresh policy: its pmf is uniform
        decision = world.router.decision(row["decision_id"]).decision
        bent = [p * 0.97 + 0.01 for p in decision.pmf]
        position = decision.arms.index(decision.arm)
        if draw_index(bent, seed=decision.seed) == position:
            break
    change(world, decisions, decisions.c.id == decision.id, pmf=json.dumps(bent), propensity=bent[position])
    verdict = refused(world, decision.id, deep=True)
    assert verdict.deep_mismatches == 1


def test_from_the_rows_alone(world):
    """Verifying needs the ledger and its files, no settings and no running router: the row has the seed."""
    ledger, files = Ledger(world.database, label=world.store.label), SnapshotFiles(world.files.root)
    verdict = verify(ledger, files=files, serving=MbaRag(), deep=True)
    assert verdict.ok
    assert all(
        draw_index(decision.pmf, seed=decision.seed) == decision.arms.index(decision.arm)
        for decision in (world.router.decision(row["decision_id"]).decision for row in world.updates())
    )


@pytest.mark.parametrize(
    ("change_of", "word", "mismatches", "same_replay"),
    [
        (lambda _: {"value": 0.987}, "update 3", 1, False),
        (lambda _: {"value": 0.987, "quality": 0.987}, "replay", 0, False),
        (lambda decision: {"arm": other_arm(decision)}, "update 3: arm", 1, False),
        # this policy does not even use it
        (lambda decision: {"propensity": decision.propensity * (1 + 2**-52)}, "update 3: propensity", 1, True),
    ],
    ids=["value", "value with its quality", "arm", "propensity"],
)
def test_a_changed_update(world, change_of, word, mismatches, same_replay):
    """A row that disagrees with its parts or its decision is named by its seq; one that does not, by the replay."""
    decision = world.router.decision(world.updates()[2]["decision_id"]).decision
    change(world, updates, updates.c.seq == 3, **change_of(decision))
    verdict = refused(world, word)
    assert verdict.ledger_mismatches == mismatches
    assert (verdict.replay_sha256 == verdict.live_sha256) == same_replay


@pytest.mark.parametrize(
    "values", [{"minimum": -0.5}, {"value": -0.9}, {"value": -4.95}, {"cost": 1.0}, {"weight": 0.001}], ids=str
)
def test_clipped_reward(make_world, values):
    """A clipped reward verifies by the bounds in its row; bound, value, cost or weight changed alone is named."""
    world = make_world(reward={"cost": {"passages": 1.0}})
    decision = world.route()
    world.outcome(decision, cost={"passages": 100})
    world.feedback(decision, rating=0.05)
    world.learn()
    record = world.router.decision(decision.id)
    assert (record.reward.value, record.reward.clipped, record.reward.terms) == (-1.0, True, {"passages": 1.0})
    assert world.router.verify(deep=True).ok
    change(world, updates, updates.c.seq == 1, **values)
    assert refused(world, "update 1").ledger_mismatches == 1


def test_no_snapshot(world):
    """A ledger that has updates while no snapshot is known is not fine: nothing says which policy learned them."""
    world.write(delete(snapshots))
    verdict = refused(world, "no snapshot")
    assert (verdict.live_version, verdict.live_sha256, verdict.replay_sha256) == ("", "", "")


def test_snapshots_of_an_earlier_release_are_no_fault(world):
    """Between an upgrade and the first learner nothing can be replayed; a note reports it until a learner has run."""
    with world.database.read() as connection:
        params = json.loads(connection.execute(select(snapshots.c.params)).scalars().first())
    del params["revision"]
    world.write(update(snapshots).values(params=json.dumps(params, sort_keys=True), params_sha256="0" * 64))
    verdict = world.router.verify()
    assert verdict.ok, verdict.notes
    assert any("an earlier release learned it" in note for note in verdict.notes)


def test_refused_rows(make_world, monkeypatch, caplog):
    """Rows that the policy refuses are skipped by learner, replay and verify alike, and counted by each.

    The learner logs one line for all that it refuses in a call.
    """
    learn = MbaRag.learn

    def choosy(policy, update):
        if update.seq % 3 == 0:
            raise PolicyFault("not this one")
        learn(policy, update)

    monkeypatch.setattr(MbaRag, "learn", choosy)
    world = make_world()
    learner = world.learner()
    for _ in range(2):
        world.judged(5)
        caplog.clear()
        assert learner.drain() == 5
        world.now += 1
    refusals = [(record.getMessage(), record.seqs) for record in caplog.records if hasattr(record, "seqs")]
    assert refusals == [("the policy refused 2 updates and continues with the others", [6, 9])]
    assert (learner.refused, learner.last_seq) == (3, 10)
    assert sum(learner.policy.seen.values()) == 7
    verdict = world.router.verify(deep=True)
    assert verdict.ok, verdict.notes
    assert verdict.refused == 3
    assert world.sha256(learner.policy) == world.sha256(world.replayed()) == verdict.live_sha256
    monkeypatch.undo()
    assert not world.router.verify().ok


def test_policy_that_does_not_repeat_itself(world, monkeypatch):
    """The deep check skips decisions of a policy that is not deterministic, and reports it."""
    monkeypatch.setattr(MbaRag, "deterministic", False)
    verdict = world.router.verify(deep=True)
    assert (verdict.ok, verdict.deep_decisions) == (True, 0)
    assert "mba does not give the same pmf twice" in verdict.notes[0]


def swap(world, one: int, other: int) -> None:
    for before, after in ((one, 1000), (other, one), (1000, other)):
        change(world, updates, updates.c.seq == before, seq=after)


def test_order(world):
    """Two updates of one arm that changed places are found: the policy depends on the order."""
    rows = world.updates()
    arm = max({row["arm"] for row in rows}, key=lambda name: sum(row["arm"] == name for row in rows))
    places = [row["seq"] for row in rows if row["arm"] == arm]
    swap(world, places[0], places[-1])
    assert "the policy is not what its ledger says" in refused(world, "replay").sentence


@pytest.mark.parametrize(
    ("lost", "words"), [(updates.c.seq == 5, ["seq 6 instead of 5"]), (updates.c.seq > 20, ["ends at 20", "24"])]
)
def test_lost_updates(world, lost, words):
    """A missing update is named by the seq that stands in its place; a ledger that ends before the policy is found."""
    world.write(delete(updates).where(lost))
    assert refused(world, *words).ledger_mismatches == 1


def live_file(world, kind: str) -> Path:
    return Path(world.files.root) / f"{world.router.service.serving.version}.{kind}"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-20] ^= 0x01
    file.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("safetensors", flip), ("json", flip), ("safetensors", Path.unlink)],
    ids=["safetensors", "json", "missing"],
)
def test_damaged_snapshot(world, kind, damage):
    """A live snapshot with one changed byte, and one without its files, is named by its version."""
    damage(live_file(world, kind))
    refused(world, world.router.service.serving.version)


def test_snapshot_of_another_ledger(world, make_world, tmp_path):
    """A whole snapshot that another ledger made, put in the live one's place, is found by the replay."""
    other = make_world(now=EPOCH, data_dir=str(tmp_path / "other"))
    other.judged(24, reward=0.9)
    other.learn()
    version, strange = world.router.service.serving.version, other.router.service.serving.version
    for kind in ("safetensors", "json"):
        live_file(world, kind).write_bytes((Path(other.files.root) / f"{strange}.{kind}").read_bytes())
    assert version != strange
    verdict = refused(world, "not the snapshot that the learner made")
    assert verdict.live_sha256 != verdict.replay_sha256


def test_version_other(world):
    """A decision moved to another version's account is found by the deep check: that version decides differently."""
    decision = first(world)
    version = world.router.service.serving.version
    change(world, decisions, decisions.c.id == decision.id, version=version)
    verdict = refused(world, decision.id, version, deep=True)
    assert verdict.deep_mismatches == 1


def test_features(world):
    """Changed features of a learned decision are found by the replay."""
    decision = first(world)
    change(world, decisions, decisions.c.id == decision.id, features=(decision.features + 1).astype("<f4").tobytes())
    verdict = refused(world)
    assert verdict.replay_sha256 != verdict.live_sha256


def test_snapshot_row_missing(world):
    """A snapshot whose row was deleted is missed by the deep check of the decisions it made."""
    version = first(world).version
    world.write(delete(snapshots).where(snapshots.c.version == version))
    refused(world, version, deep=True)
