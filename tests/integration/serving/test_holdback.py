"""A holdback in a service: in whose draws it has its share, what rows and explanations tell of it, and the audit."""

import json

import pytest
from sqlalchemy import update

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.policies.draw import draw_index
from ragbandit.router.serving.explanations.explain import explain
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import HoldbackShare, Query, candidate_notes
from tests.support.rollouts import shadow

ARM = "multi_step"
SHARE = 0.25
HELD = {"arm": ARM, "share": SHARE}


def share_of(decision):
    return decision.pmf[decision.arms.index(ARM)]


def test_a_shadow_and_its_champion_have_the_same_holdback(make_world):
    """The holdback is exact in both pmfs, rows record it completely, and the deep audit recomputes every pmf."""
    world = make_world(policy={"holdback": HELD, "cold_start_floor": 0.1})
    world.judged(20)
    world.learn()
    changes = {"policy": {"name": "fixed", "params": {"arm": "no_retrieval"}, "floor": 0.0, "cold_start_floor": 0.0}}
    shadow(world, **changes)
    made = [world.route() for _ in range(20)]
    for decision in made:
        (note,) = candidate_notes(decision.facts)
        assert note.pmf[decision.arms.index(ARM)] == SHARE
        assert decision.facts[HoldbackShare.key] == HELD | {"floor": world.settings.policy.floor_of(3)}
        assert min(share_of(decision) - SHARE, *decision.pmf) >= decision.floor - 1e-12
    verified = world.router.verify(deep=True)
    assert verified.ok
    assert verified.deep_decisions == 40
    explained = explain(world.store, made[0].id, rule=closing_rule(world.settings.learning))
    assert any("The holdback" in reason for reason in explained.reasons)


def test_a_row_without_its_holdback_is_found(make_world):
    """A row whose draw is sound, but from a pmf that its holdback does not give, is a mismatch."""
    world = make_world(policy={"holdback": HELD})
    less = (0.4, 0.4, 0.2)
    last = next(d for d in map(world.route, map(str, range(50))) if d.arms[draw_index(less, seed=d.seed)] == d.arm)
    changed = {"pmf": json.dumps(less), "propensity": less[last.arms.index(last.arm)], "floor": 0.0}
    world.write(update(decisions).where(decisions.c.id == last.id).values(**changed))
    verified = world.router.verify(deep=True)
    assert (verified.propensity_mismatches, verified.deep_mismatches) == (0, 1)


def test_a_share_falls_as_answers_are_learned(make_world):
    """The share follows from the row, and the audit finds a row that has another one, or another number of answers."""
    held = {"arm": ARM, "share": 0.4, "until": 4, "then": 0.1}
    world = make_world(policy={"holdback": held, "floor": 0.0, "name": "fixed", "params": {"arm": ARM}})
    facts = {}
    for learned, share in ((0, 0.4), (10, 0.16), (20, 0.1)):
        decision = world.judged(10)[0]
        facts[decision.id] = fact = decision.facts[HoldbackShare.key]
        assert (fact["learned"], fact["share"]) == (learned, pytest.approx(share))
        world.learn()
    assert world.router.verify(deep=True).ok
    key = decision.id
    explained = explain(world.store, key, rule=closing_rule(world.settings.learning))
    assert any("It falls to 0.1" in reason for reason in explained.reasons)
    for changed, found in (({"share": 0.2}, (1, 0)), ({"learned": 10**6}, (0, 1))):
        other = json.dumps({**decision.facts, HoldbackShare.key: facts[key] | changed})
        world.write(update(decisions).where(decisions.c.id == key).values(facts=other))
        verified = world.router.verify(deep=True)
        assert (verified.propensity_mismatches, verified.deep_mismatches) == found


def test_where_nothing_is_drawn_it_has_no_share(make_world):
    """Rows of forced arms, single arms, later turns, and without the arm have no holdback."""
    world = make_world(policy={"holdback": HELD}, conversation={"unit": "task"})
    asked = [
        Query(text="q", arms=("single_step",), arm_by="caller"),
        Query(text="q", arms=(ARM,)),
        Query(text="q", arms=("single_step", "no_retrieval")),
        Query(text="q", session="s"),
        Query(text="and then?", session="s"),
    ]
    made = [world.router.submit(query, run_by="caller").result(30) for query in asked]
    assert [HoldbackShare.key in decision.facts for decision in made[:4]] == [False, False, False, True]
    assert made[4].pmf == (1.0,)
    assert made[4].turn_of == made[3].id
    assert world.router.verify(deep=True).ok


def test_with_an_incumbent_it_is_the_incumbent_that_has_it(make_world):
    """Beside what holds the policy back; a policy that fails leaves the incumbent all."""
    world = make_world(policy={"holdback": {"arm": "single_step", "share": 0.1}, "incumbent": "single_step"})
    for _ in range(3):
        for decision in world.judged(10, reward=0.5):
            assert decision.floor <= 0.9 * world.settings.policy.floor_of(3)
            assert decision.facts[HoldbackShare.key]["floor"] * 0.9 == decision.floor
        world.learn()
    assert world.route().facts["incumbent"]["share"] > 0.0
    assert world.router.verify(deep=True).ok
