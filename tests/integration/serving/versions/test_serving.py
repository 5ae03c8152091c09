"""Versions in service: decisions in shadow and under the kill switch, in one process and in two."""

import itertools
import math

import pytest

from ragbandit.router.policies.draw import draw_index
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.rollouts import verbs
from ragbandit.router.serving.loading import versions
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import (
    MOST_FACTOR,
    NO_TERMS,
    CandidateNotes,
    Conversation,
    DecisionId,
    PinnedArm,
    Query,
    Terms,
    candidate_note,
    candidate_notes,
)
from tests.conftest import on_sqlite
from tests.support import bad_policies
from tests.support.rollouts import BASE, add, do, shadow
from tests.support.waiting import until

ARMS = {name: {"run_by": "caller"} for name in ("one", "two", "three")}
#: the default time limit is for machines that do nothing else
PATIENT = {"rollout": {"time_limit_s": 5.0}}


def kill(database, arm=None, offered=tuple(ARMS)):
    verbs.kill(database, base=BASE, arm=arm, offered=offered, actor="cli:ann@host", reason="smoke", now=3.0)


def unkill(database):
    verbs.unkill(database, base=BASE, actor="cli:ann@host", reason="over", now=4.0)


def drawn_again(decision):
    return decision.arms[draw_index(decision.pmf, seed=decision.seed)]


FIXED_TWO = {"policy": {"name": "fixed", "params": {"arm": "two"}}}


@on_sqlite
def test_shadow_is_logged_and_changes_nothing(world):
    """In shadow the row has both pmfs, and the draw uses only the champion's."""
    before = world.route(key="00000000-0000-7000-8000-000000000001")
    name = shadow(world, **FIXED_TWO)
    decision = world.route()
    assert decision.pmf == before.pmf
    said = candidate_note(decision.facts, name)
    assert said.fault is None
    assert said.snapshot.startswith("main.v1-0-")
    assert math.fsum(said.pmf) == pytest.approx(1.0)
    assert said.pmf[decision.arms.index("two")] > 0.8
    assert CandidateNotes.key not in before.facts


@on_sqlite
def test_an_arm_that_only_a_version_has_is_unseen(world):
    """The decision records the version's probability of the new arm, unless the caller names the arms."""
    deep = {"arms": {"deep": {"run_by": "caller"}}, "policy": {"name": "fixed", "params": {"arm": "deep"}}}
    name = shadow(world, **deep)
    said = candidate_note(world.route().facts, name)
    assert said.unseen > 0.8
    assert math.fsum(said.pmf) + said.unseen == pytest.approx(1.0)
    chosen = world.router.submit(Query(text="mine", arms=("one", "two")), run_by="caller").result(30)
    assert candidate_note(chosen.facts, name).unseen is None


def test_a_spent_budget_comes_before_the_safe_start_of_a_version(make_world):
    """Under a spent budget the version's pmf is the one that it would decide with, without its safe start."""
    world = make_world(arms=ARMS, policy={"name": "mba", "incumbent": "one"}, **PATIENT)
    name = shadow(world, policy={"params": {"explore": 0.9}})
    for terms in (NO_TERMS, Terms(budget_factor=MOST_FACTOR)):
        decision = world.router.submit(Query(text="q", terms=terms), run_by="caller").result(30)
        pmf = candidate_note(decision.facts, name).pmf
        assert (pmf[decision.arms.index("one")] > 0.8) == (terms == NO_TERMS)


@on_sqlite
def test_a_retired_version_is_not_asked(world):
    """A retired version leaves the decisions without a restart."""
    name = shadow(world, **FIXED_TWO)
    do(world.database, "retire", name)
    world.router.refresh()
    assert CandidateNotes.key not in world.route().facts


@on_sqlite
def test_a_thrown_switch_holds_for_the_next_decision_of_every_process(world):
    """Two routers on one database, no Redis, no learner: each plays the pinned arm with its next decision."""
    name = shadow(world, **FIXED_TWO)
    with Router.open(world.settings, jobs=MemoryJobs()) as other:
        ids = itertools.count(1)

        def route(router, **more):
            key = DecisionId(f"00000000-0000-7000-8000-{next(ids):012d}")
            return router.submit(Query(text="which?", id=key, **more), run_by="caller").result(30)

        routers = (world.router, other)
        assert all(candidate_note(route(router).facts, name) for router in routers)
        kill(world.database, "three")
        for decision in map(route, routers):
            assert (decision.arm, decision.arms, decision.pmf, decision.propensity) == (
                "three",
                ("three",),
                (1.0,),
                1.0,
            )
            assert decision.facts[PinnedArm.key]["arm"] == "three"
            assert CandidateNotes.key not in decision.facts
            assert drawn_again(decision) == decision.arm
        chat = route(other, arms=("one", "two"), conversation=Conversation(fields={"messages": [], "seed": 1}))
        assert (chat.arm, bool(chat.query.conversation)) == ("one", False)  # not allowed: the fallback's rule
        assert chat.query.sent.ignored == ("seed",)
        unkill(world.database)
        assert all(candidate_note(route(router).facts, name) for router in routers)
        kill(world.database)
        for decision in map(route, routers):
            assert CandidateNotes.key not in decision.facts
            assert PinnedArm.key not in decision.facts
            assert decision.pmf == pytest.approx((1 / 3,) * 3)


@on_sqlite
def test_a_second_switch_holds_for_a_decision_that_is_made_again(world):
    """The switch is read again with every try, so the decision that is stored has the newest one."""
    switches, add_decisions = [None, "three"], world.router.store.add_decisions

    def switched(group, **more):
        if switches:
            kill(world.database, switches.pop(0))
        return add_decisions(group, **more)

    world.router.store.add_decisions = switched
    decision = world.route()
    assert (decision.arm, decision.facts[PinnedArm.key]["arm"]) == ("three", "three")


def test_a_restart_finds_every_state(make_world):
    """A router that opens asks the versions in shadow, and no other."""
    world = make_world(arms=ARMS, policy={"name": "uniform"}, **PATIENT)
    for state, way in {"draft": [], "retired": ["retire"], "shadow": ["shadow"]}.items():
        add(world.database, name=state, **FIXED_TWO)
        for verb in way:
            do(world.database, verb, state)
    with Router.open(world.settings, jobs=MemoryJobs()) as again:
        facts = again.submit(Query(text="again?"), run_by="caller").result(30).facts
    assert [note.version for note in candidate_notes(facts)] == ["shadow"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Raises", "a bug"),
        ("Exits", "SystemExit"),
        ("OddFacts", "not JSON serializable"),
        ("WrongPmf", "pmf sums to"),
        ("Slow", "ms"),
        ("Hangs", "ms"),
        ("NotMade", "the encoder of this model is not there"),
    ],
)
def test_a_bad_candidate_costs_no_decision(make_world, kind, said):
    """The champion alone decides, the row says why, and after some faults in a row the candidate is left out."""
    limit_s = 0.01 if said == "ms" else 5.0
    world = make_world(arms=ARMS, policy={"name": "uniform"}, rollout={"time_limit_s": limit_s})
    bad_policies.RELEASED.clear()
    try:
        name = shadow(world, policy={"name": f"{bad_policies.__name__}:{kind}"})
        decisions = [candidate_note(world.route().facts, name) for _ in range(8)]
        decision = world.route()
    finally:
        bad_policies.RELEASED.set()
    assert all(one.pmf is None and one.fault for one in decisions)
    assert said in decisions[0].fault
    assert decision.fault is None
    assert decision.pmf == pytest.approx((1 / 3,) * 3)
    if kind != "NotMade":
        assert any("left out" in one.fault or "still busy" in one.fault for one in decisions)


def test_a_candidate_that_hangs_while_it_is_made_holds_up_no_start(make_world, monkeypatch):
    """A router starts and decides without the hanging candidate; when it returns, it is asked again."""
    monkeypatch.setattr(versions, "LOAD_S", 0.05)
    monkeypatch.setattr(versions, "AGAIN_S", 0.05)
    world = make_world(arms=ARMS, policy={"name": "uniform"}, **PATIENT)
    bad_policies.RELEASED.clear()
    try:
        name = shadow(world, policy={"name": f"{bad_policies.__name__}:HangsMade"})
        with Router.open(world.settings, jobs=MemoryJobs()) as again:
            decision = again.submit(Query(text="which?"), run_by="caller").result(30)
    finally:
        bad_policies.RELEASED.set()
    assert "has not been loaded" in candidate_note(decision.facts, name).fault
    assert decision.pmf == pytest.approx((1 / 3,) * 3)
    until(lambda: world.router.refresh() or candidate_note(world.route().facts, name).fault is None, seconds=30)
