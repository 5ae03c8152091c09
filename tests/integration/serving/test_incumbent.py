"""A router with an incumbent: its decisions live, late and after a change, and the result of `verify --deep`."""

import shutil

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.policies.algorithms.conservative import ConservativeParams
from ragbandit.router.serving.explanations.explain import explain

INCUMBENT = "single_step"
SAFE = {"policy": {"incumbent": INCUMBENT}}


def taught(world, *, rows=60, spread=0.0):
    """The world after this many decisions, judged and learned ten at a time; the incumbent earns most.

    spread: every second reward is higher by this
    """
    made = []
    for first in range(0, rows, 10):
        for decision in [world.route(key=f"safe-{number}") for number in range(first, first + 10)]:
            world.feedback(decision, reward=(0.7 if decision.arm == INCUMBENT else 0.4) + spread * (len(made) % 2))
            made.append(decision)
        world.learn()
    return made


def test_it_starts_with_the_incumbent_alone(make_world):
    """A new router plays only the incumbent, then others more and more; every pmf is recomputed from snapshots."""
    world = make_world(**SAFE)
    decisions = taught(world)
    assert all(d.propensity == 1.0 and d.arm == INCUMBENT and d.floor == 0.0 for d in decisions[:10])
    assert decisions[0].facts["incumbent"]["reason"] == "too few outcomes of it are learned"
    shares = [d.facts["incumbent"]["share"] for d in decisions]
    assert shares[-1] > 0.0
    assert min(decisions[-1].pmf) >= decisions[-1].floor > 0.0
    verified = world.router.verify(deep=True)
    assert verified.ok
    assert verified.deep_decisions == len(decisions)
    assert world.sha256(world.replayed()) == world.sha256(world.router.service.serving.policy)


def test_decisions_of_a_former_revision_are_made_again(make_world, tmp_path, monkeypatch):
    """A ledger of revision 7 is learned again; `verify --deep` recomputes its decisions by the rule of revision 7."""
    monkeypatch.setitem(ConservativeParams.__init__.__kwdefaults__, "revision", 7)
    former = make_world(data_dir=str(tmp_path), **SAFE)
    decisions = taught(former)
    assert former.router.service.serving.policy.params["revision"] == 7
    former.router.close()
    monkeypatch.undo()
    present = make_world(data_dir=str(tmp_path), **SAFE)
    present.learn()
    assert present.router.service.serving.policy.params["revision"] == 8
    verified = present.router.verify(deep=True)
    assert (verified.ok, verified.deep_decisions, verified.not_checkable) == (True, len(decisions), 0)


def test_rows_with_the_least_share_are_made_again(make_world):
    """A row gives each arm 0 or at least .005; `verify --deep` finds the same turns, and `explain` has their rule."""
    world = make_world(policy={"incumbent": INCUMBENT, "harm": 0.01})
    decisions = taught(world, rows=60, spread=0.3)
    dealt = [d for d in decisions if d.facts["incumbent"]["share"] > 0.0 and 0.0 in d.pmf]
    assert all(p == 0.0 or p >= 0.005 for d in decisions for p in d.pmf)
    assert {p for d in dealt for p in d.pmf} >= {0.0, 0.005}
    verified = world.router.verify(deep=True)
    assert (verified.ok, verified.deep_decisions) == (True, len(decisions))
    explained = explain(world.store, dealt[-1].id, rule=closing_rule(world.settings.learning))
    assert any("less than 0.005" in reason for reason in explained.reasons)


def test_it_decides_during_a_rebuild(make_world):
    """Where no snapshot is left it has all of the probability, before the fallback and without floors."""
    world = make_world(**SAFE)
    taught(world)
    world.router.close()
    shutil.rmtree(world.settings.snapshot_root)
    given = {"policy": {"incumbent": INCUMBENT, "fallback": "multi_step"}, "data_dir": world.settings.data_dir}
    again = make_world(**given)
    assert again.router.service.serving.rebuilding
    decision = again.route()
    assert (decision.arm, decision.propensity, decision.floor) == (INCUMBENT, 1.0, 0.0)
    again.learn()
    assert not again.router.service.serving.rebuilding
    assert again.router.verify(deep=True).ok


def test_switched_on_later_and_off_again(make_world, tmp_path):
    """The same ledger goes on and is learned again; until then the incumbent is used, not an unrestricted policy."""
    plain = make_world(data_dir=str(tmp_path))
    taught(plain, rows=40)
    plain.router.close()
    safe = make_world(data_dir=str(tmp_path), **SAFE)
    assert safe.router.service.serving.rebuilding
    assert safe.route().propensity == 1.0
    safe.learn()
    policy = safe.router.service.serving.policy
    assert dict(policy.inner.params) == {**plain.router.service.serving.policy.params, "explore": 0.5}
    assert sum(policy.seen.values()) == 40
    assert safe.router.verify(deep=True).ok
    safe.router.close()
    off = make_world(data_dir=str(tmp_path))
    off.learn()
    assert off.router.service.serving.policy.algorithm == "mba"
    assert off.router.service.serving.policy.params == plain.router.service.serving.policy.params
    assert "incumbent" not in off.route().facts
