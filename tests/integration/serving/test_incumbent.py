"""A router with an incumbent: its decisions live, late and after a change, and the result of `verify --deep`."""

import shutil

import pytest

from ragbandit.router.learning.examples import closing_rule, updates_to_learn
from ragbandit.router.policies import make_policy
from ragbandit.router.serving.explanations.explain import explain
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.shared.types import MOST_FACTOR, Query, Terms

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


def test_another_weight_of_cost_keeps_another_account(make_world, tmp_path):
    """After a change of `reward.weight` the former policy decides until its ledger is learned again at the new one."""
    former = make_world(data_dir=str(tmp_path), **SAFE)
    decisions = taught(former)
    former.router.close()
    present = make_world(data_dir=str(tmp_path), reward={"weight": 0.2}, **SAFE)
    decisions.append(present.route())
    assert "rebuilding" in decisions[-1].facts
    assert decisions[-1].version == former.router.service.serving.version
    present.learn()
    assert present.router.service.serving.policy.params["weight"] == 0.2
    verified = present.router.verify(deep=True)
    assert (verified.ok, verified.deep_decisions, verified.not_checkable) == (True, len(decisions), 0)


def test_a_spent_budget_comes_before_the_safe_start(make_world):
    """The policy decides a question of a spent budget alone, the row and `explain` say it, and its loss costs nothing.

    That stays true for the audit when the texts of the question are erased.
    """
    wants = {"name": "fixed", "params": {"arm": "multi_step"}}
    world = make_world(policy={"incumbent": INCUMBENT, **wants})
    taught(world)
    before = world.route(key="before").facts["incumbent"]["slack"]
    released = []
    for number in range(40):
        query = Query(text=f"question {number}", tenant="poor", terms=Terms(budget_factor=MOST_FACTOR))
        released.append(world.router.route(query))
        world.feedback(released[-1], reward=0.0)
    assert all(d.facts["incumbent"]["released"] and d.facts["incumbent"]["share"] == 1.0 for d in released)
    assert all(d.pmf[d.arms.index("multi_step")] > 0.9 for d in released)
    world.learn()
    after = world.route(key="after").facts["incumbent"]
    assert after["slack"] == pytest.approx(before, abs=0.2)
    assert "released" not in after
    explained = explain(world.store, released[0].id, rule=closing_rule(world.settings.learning))
    assert any("A budget is spent, and comes before the safe start" in reason for reason in explained.reasons)
    erase(world.database, Selection(tenant="poor"), features=False, actor="me", now=world.now)
    assert world.router.verify(deep=True).ok
    assert world.sha256(world.replayed()) == world.sha256(world.router.service.serving.policy)


def test_the_account_is_a_function_of_the_ledger(make_world, database_url):
    """Turns, tasks, bound and priced questions teach the same live and from the rows, and spent budgets nothing."""
    world = make_world(database_url=database_url, cost_weights={"dear": 2.0}, **SAFE)
    taught(world, rows=30)
    bound = {"arms": ("single_step", "multi_step")}, {"arms": ("multi_step", "no_retrieval")}, {"arms": ("multi_step",)}
    asked = (*bound, {"cost_weight": "dear"}, {"terms": Terms(budget_factor=MOST_FACTOR)}, {"unit": "task"})
    for number in range(48):
        more = asked[number % len(asked)]
        session = f"session-{number}" if "unit" in more else None
        decision = world.router.route(Query(text=f"question {number}", session=session, **more))
        world.router.outcome(decision.id, answer="x", steps=number % 4)
        world.feedback(decision, rating=float(number % 3 > 0))
    world.now += 4000.0
    world.learn()
    live = world.router.service.serving.policy
    assert sum(live.seen.values()) == 62  # without the 8 under a spent budget and the 8 that allow one arm only
    lean, whole = (make_policy(live.algorithm, params=live.params) for _ in range(2))
    for update in updates_to_learn(world.ledger, policy=lean, after=0):
        lean.learn(update)
    for update in world.ledger.read(after=0):
        whole.learn(update)
    assert world.sha256(live) == world.sha256(lean) == world.sha256(whole)
    assert live.shortfall.means["task"].rows > 0
    assert world.router.verify(deep=True).ok


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
