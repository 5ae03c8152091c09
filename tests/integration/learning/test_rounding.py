"""`verify` of a policy computed by torch: rounding by another processor passes and is reported; a change fails."""

import json

import numpy as np
import pytest
from sqlalchemy import update

from ragbandit.router.learning.audit.checks import agrees
from ragbandit.router.learning.snapshots import pack
from ragbandit.router.policies.base import tolerance_of
from ragbandit.router.policies.draw import DrawResult
from ragbandit.router.storage.sql.tables import decisions, snapshots, updates
from tests.support.audits import assert_compared, verified
from tests.support.tiny_models import tiny_encoder

POLICY = {
    "name": "mba_paper",
    "params": {"model": tiny_encoder(), "max_tokens": 16, "device": "cpu", "threads": 1, "total": 100},
}
WORDS = ("who", "wrote", "dracula", "born", "city", "river", "before", "after", "both", "film")


def judged(make_world, count=12, **given):
    """A world with so many decisions that wait to be learned."""
    world = make_world(**{"policy": POLICY} | given)
    for number in range(count):
        decision = world.route(" ".join(WORDS[(number * step) % len(WORDS)] for step in (1, 3, 7)))
        world.feedback(decision, reward=0.1 * (number % 7))
    return world


@pytest.fixture
def world(make_world):
    judged_world = judged(make_world)
    assert judged_world.learn() == 12
    return judged_world


def live(world):
    """Description of the live snapshot."""
    return world.ledger.latest_snapshots(limit=1)[0]


def store(world, *, origin, name, row, factor):
    """Make a valid snapshot live that equals `origin` except for one row of its array `name`, which is multiplied."""
    policy, info = world.files.load(origin)
    arrays, facts = policy.state()
    arrays = {key: array.copy() for key, array in arrays.items()}
    arrays[name][row] *= factor(arrays[name][row].shape)
    policy.restore(arrays, facts)
    made, tensors, described = pack(
        policy, label=info.policy, last_seq=info.last_seq, encoder_hash=info.encoder_hash, now=info.made_at
    )
    world.files.write(made, tensors, described)
    row_of_live = snapshots.c.version == live(world).version
    world.write(update(snapshots).where(row_of_live).values(version=made.version, sha256=made.sha256))


def rounding(shape):
    return (1.0 + np.random.default_rng(3).uniform(-1.0, 1.0, shape) * 2.0**-22).astype(np.float32)


def test_rounded(world):
    """A live policy that differs by rounding verifies, also deep: the verdict has its difference and both sha256, and
    names what may round in another way, a former release too.
    """
    store(world, origin=live(world).version, name="encoder", row=0, factor=rounding)
    verdict = world.router.verify(deep=True)
    assert verdict.ok, verdict.notes
    assert 2.0**-25 < verdict.within_rounding < 2.0**-22
    assert verdict.replay_sha256 != verdict.live_sha256
    assert "rounding, as by a release that computes in another order, another processor" in verdict.notes[0]


def test_another_processor(world, other_torch):
    """A policy of torch verifies on another processor within its tolerance, and a change by 1 % does not."""
    assert_compared(other_torch.call(verified, world.settings), tolerance=tolerance_of(world.replayed()))
    store(world, origin=live(world).version, name="encoder", row=0, factor=lambda _: np.float32(1.01))
    verdict = other_torch.call(verified, world.settings)
    assert (verdict.ok, verdict.within_rounding) == (False, None)


def test_changed(world):
    """Any part of the live policy that was changed by 1 % does not verify: weights, means and squares of each array."""
    origin = live(world).version
    head = next(name for name in world.files.load(origin)[0].state()[0] if name.startswith("head/"))
    for name in ("encoder", "pre", head):
        for row in range(3):
            store(world, origin=origin, name=name, row=row, factor=lambda _: np.float32(1.01))
            verdict = world.router.verify()
            assert (verdict.ok, verdict.within_rounding) == (False, None), (name, row)
            assert "more than rounding" in verdict.notes[0]


def test_changed_row(world):
    """A reward of the ledger that was changed, with its quality, is more than rounding in the replay."""
    world.write(update(updates).where(updates.c.seq == 3).values(value=0.25, quality=0.25))
    verdict = world.router.verify()
    assert (verdict.ok, verdict.within_rounding) == (False, None)


@pytest.mark.parametrize(("factor", "ok"), [(1.0 + 2.0**-52, True), (1.0 + 1e-4, False)])
def test_float64_policy(make_world, factor, ok):
    """A policy on float64 verifies where an array differs in its last bit, and not where it differs by 1e-4."""
    world = judged(make_world, policy={"name": "mba"})
    world.learn()
    policy, info = world.files.load(live(world))
    assert tolerance_of(policy) == 1e-6
    name = next(name for name, array in policy.state()[0].items() if array.dtype == np.float64 and array.any())
    store(world, origin=info.version, name=name, row=..., factor=lambda _: factor)
    assert world.router.verify().ok == ok


def test_ties_may_trade(world):
    """With deep, two arms whose scores are a tie within rounding may trade their probabilities; others may not."""
    decision = world.route("who wrote dracula ?")
    best, *others = sorted(range(3), key=lambda place: -decision.scores[place])
    pmf = list(decision.pmf)
    pmf[best], pmf[others[0]] = pmf[others[0]], pmf[best]
    made = DrawResult(index=0, pmf=tuple(pmf), floor=0.0, scores=decision.scores)
    gap = decision.scores[best] - decision.scores[others[0]]
    share = gap / 2.0 / max(map(abs, decision.scores))
    assert agrees(made, decision=decision, tolerance=share * 1.01)
    assert not agrees(made, decision=decision, tolerance=share * 0.99)
    assert not agrees(made, decision=decision, tolerance=0.0)


def test_pruned_version(world):
    """With deep, a rounded version whose files were pruned is counted as not compared; its pmfs are checked."""
    former = live(world)
    decision = world.route("who wrote dracula ?")
    world.write(update(snapshots).where(snapshots.c.version == former.version).values(sha256="0" * 64))
    for number in range(3):
        world.feedback(world.route(f"river {number}"), reward=0.5)
    world.now += 1
    world.learn()
    world.files.prune([former.version])
    verdict = world.router.verify(deep=True)
    assert (verdict.ok, verdict.not_compared, verdict.deep_decisions) == (True, 1, 16)
    bent = [p * 0.97 + 0.01 for p in decision.pmf]
    drawn = bent[decision.arms.index(decision.arm)]
    world.write(update(decisions).where(decisions.c.id == decision.id).values(pmf=json.dumps(bent), propensity=drawn))
    assert world.router.verify(deep=True).deep_mismatches == 1
