"""Explanations agree with the decision's row, whatever happened to it later."""

from dataclasses import replace

import pytest

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.monitoring.diagnosis import STARVED
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.explanations.explain import booked_price, choice_words, explain
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.shared.types import ERASED, Continues, Cost, Generated, Loop, Query, Retrieved, Round, Source
from tests.conftest import on_sqlite

SECRET = "Zygmunt-Przybylski"


@pytest.fixture
def world(make_world, database_url):
    return make_world(database_url=database_url, policy={"name": "mba"})


def told(world, decision, **options):
    return explain(world.store, decision.id, rule=closing_rule(world.settings.learning), **options)


def answered(world, decision):
    """An outcome of our workers, with a search that found two passages."""
    outcome = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="Bram Stoker", steps=1.0)
    trace = (
        Round(number=1),
        Retrieved(query="Dracula author", ids=("p1", "p2"), scores=(2.5, 1.5), seconds=0.1),
        Generated(purpose="answer", text="Bram Stoker", prompt_tokens=20, completion_tokens=3, seconds=0.5),
    )
    sources = (Source(id="p1", title="Dracula", text="a novel of 1897"),)
    outcome = replace(
        outcome, trace=trace, sources=sources, run_by="worker", cost=replace(outcome.cost, passages=2, llm_calls=1)
    )
    world.store.add_outcome(outcome)


@on_sqlite
def test_the_draw_is_within_the_edges_of_its_arm(world):
    """Edges meet, and u lies between those of the arm that was drawn."""
    for number in range(20):
        explained = told(world, world.route(f"question {number}"))
        (drawn,) = (arm for arm in explained.arms if arm.drawn)
        assert drawn.low <= explained.draw.u < drawn.high
        assert [arm.low for arm in explained.arms[1:]] == [arm.high for arm in explained.arms[:-1]]
        assert any("u = " in reason for reason in explained.reasons)
        assert explained.draw.fault is None


@on_sqlite
def test_a_learned_decision_is_told_to_its_place_in_the_ledger(world):
    """From the answer that is awaited over feedback to its number, with what came too late."""
    decision = world.router.submit(Query(text="Who wrote Dracula?"), run_by="worker").result(30)
    assert "worker's answer" in told(world, decision).progress
    answered(world, decision)
    assert "Waits for feedback;" in told(world, decision).progress
    own = world.router.route("Who wrote Emma?")
    assert "Waits for the outcome and feedback;" in told(world, own).progress
    world.feedback(decision, rating=1.0, rater="ann")
    assert "takes it next" in told(world, decision).progress
    assert world.learn() == 1
    explained = told(world, decision)
    assert explained.progress == "Learned from feedback, as update 1 of its ledger."
    assert explained.record.reward is not None
    world.feedback(decision, rating=0.0, rater="late")
    assert [item.id in told(world, decision).record.late for item in told(world, decision).record.feedback] == [
        False,
        True,
    ]


def test_erased_decisions_say_so(world):
    """The text of an erased decision is not shown, and whether its features went too is said."""
    first = world.route(f"who is {SECRET}?")
    world.feedback(first, reward=0.5)
    world.learn()
    again = world.route("who is that?")
    erase(world.database, Selection(decision=first.id), features=False, actor="cli:me", now=world.now)
    explained = told(world, first)
    assert (explained.record.decision.facts[ERASED], explained.record.decision.query.text) == ("texts", "")
    erase(world.database, Selection(before=2e9), features=True, actor="cli:me", now=world.now)
    explained = told(world, again)
    assert explained.record.decision.facts[ERASED] == "texts and features"


def written(world, make_decision, *, draws=True, **changes):
    """A decision with unexpected content."""
    decision = make_decision(**changes)
    if not draws:
        other = next(arm for arm in decision.arms if arm != decision.arm)
        decision = replace(decision, arm=other)
    world.store.add_decisions([decision])
    return told(world, decision)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"fault": "pmf sums to 2.0"},
            "policy failed, so the fallback arm had all but the floors. It said: pmf sums to",
        ),
        ({"facts": {"unhealthy": {"arms": ["multi_step"]}}}, "not healthy: multi_step"),
        ({"facts": {"rebuilding": True}}, "being learned again"),
        ({"facts": {"imported": "jsonl"}}, "imported log"),
        ({"facts": {"candidate": [{"version": "v2", "pmf": [1, 0, 0]}]}}, "v2, in shadow, was"),
        ({"facts": {"candidate": [{"version": "v2", "fault": "it raised"}]}}, "gave no probabilities: it raised"),
        ({"facts": {"killed": {"arm": "multi_step", "revision": 3}}}, "kill switch was on with the arm multi_step"),
        ({"facts": {"candidate": "nonsense", "incumbent": [], "quality": "x", "cost": [1]}}, "probability"),
    ],
)
def test_reasons(make_world, make_decision, changes, said):
    """Each of the ways to an arm has its sentence; facts of another shape than ours break nothing."""
    explained = written(make_world(), make_decision, **changes)
    assert any(said in reason for reason in explained.reasons), explained.reasons


TURN = {"turn_of": "first"}
LOOP = Continues(loop=Loop(first="first", previous="p", turn=2))


@pytest.mark.parametrize(
    ("changes", "query", "said"),
    [
        ({}, {}, "the most probable arm"),
        ({"explored": True}, {}, "explored: not the most probable arm"),
        ({"explored": True, "pmf": (0.4, 0.4, 0.2), "propensity": 0.4}, {}, "as probable as any arm"),
        ({"arm_by": "caller"}, {"arm_by": "caller"}, "the caller chose it"),
        ({"arm_by": "limit"}, {}, "a limit chose it"),
        (TURN | {"facts": {"task": {"unit": "u", "turn": 6, "until": 1.0}}}, {}, "turn 6 of a task: nothing was drawn"),
        # a turn that brings results of tools has its arm by force, inside a task and without one
        (
            TURN | {"facts": {"task": {"unit": "u", "turn": 6, "until": 1.0}}},
            {"arm_by": "calls", "continues": LOOP},
            "turn 6 of a task: nothing was drawn",
        ),
        (TURN, {"arm_by": "calls", "continues": LOOP}, "turn 2 of a loop of tools: nothing was drawn"),
        (TURN, {"arm_by": "calls"}, "a later turn of a task: nothing was drawn"),
        ({"arm_by": "kill switch"}, {}, "the kill switch chose it"),
        ({"arm_by": "task"}, {}, "it stayed on the arm of an earlier turn"),
        ({"facts": {"imported": "jsonl"}}, {}, "drawn elsewhere, in an imported log"),
        ({"facts": {"incumbent": {"arm": "multi_step", "share": 0.0}}}, {}, "the safe start chose it"),
        ({"facts": {"incumbent": {"arm": "multi_step", "share": 0.5}}}, {}, "the most probable arm"),
    ],
)
def test_who_chose_the_arm(make_decision, changes, query, said):
    """Few words say who or what chose the arm; a later turn is never called the caller's choice."""
    decision = make_decision(**{"explored": False} | changes)
    assert choice_words(replace(decision, query=replace(decision.query, **query))) == said


def test_a_turn_has_the_state_of_its_task(make_world):
    """While its task is open, ended, learned or closed, a later turn says the same as the first one."""
    world = make_world(conversation={"unit": "task"})
    first, second = (world.router.submit(Query(text=f"q {n}", session="s")).result(30) for n in range(2))

    def both(said):
        one, two = (told(world, decision, now=world.now) for decision in (first, second))
        assert said in one.progress
        assert two.progress == f"As part of decision {first.id}: {one.progress[0].lower()}{one.progress[1:]}"
        assert (one.record.state, one.record.reward) == (two.record.state, two.record.reward)
        assert one.record.feedback == two.record.feedback
        return one.record.state

    assert both("Waits for the end of its task: at ") == "waiting"
    for decision in (first, second):
        world.outcome(decision)
    world.router.end_session("s")
    assert both("Waits for feedback; else it is closed at ") == "waiting"
    world.feedback(second, rating=1.0)
    world.now += 1.0
    assert both("Has all it needs") == "waiting"
    assert world.learn() == 1
    assert both("Learned from feedback, as update 1 of its ledger.") == "learned"


def test_forced_and_later_turns_are_no_draws(make_world):
    """A forced arm and a later turn of a task are explained as such."""
    world = make_world(conversation={"unit": "task"})
    forced = world.router.submit(Query(text="q", arms=("single_step",), arm_by="caller")).result(30)
    assert told(world, forced).reasons[0].startswith("The caller chose single_step")
    first = world.router.submit(Query(text="q", session="s")).result(30)
    world.now += 1
    second = world.router.submit(Query(text="q again", session="s")).result(30)
    belongs = f"Turn 2 of a task belongs to decision {first.id} and keeps the arm of the turn before"
    assert told(world, second).reasons[0].startswith(belongs)
    assert any("It is the first turn of a task" in reason for reason in told(world, first).reasons)


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        (
            {
                "pmf": (0.0, 1.0, 0.0),
                "arm": "single_step",
                "propensity": 1.0,
                "facts": {"incumbent": {"arm": "single_step", "share": 0.0}},
            },
            "The safe start gave this question to single_step",
        ),
        (
            {
                "arms": ("single_step",),
                "pmf": (1.0,),
                "arm": "single_step",
                "propensity": 1.0,
                "arm_by": "rule",
                "facts": {"rules": {"names": ["eu"], "arms": ["single_step"]}},
            },
            "rules allow only",
        ),
        (TURN | {"arm_by": "limit", "facts": {"moved": {"reason": "3 turns"}}}, "A limit of its session or task"),
    ],
)
def test_the_main_reason_comes_first(make_world, make_decision, changes, first):
    """What left a single arm stands before the draw, and why a turn has another arm before what it belongs to."""
    explained = written(make_world(), make_decision, **changes)
    assert first in explained.reasons[0], explained.reasons
    assert not any("random draw" in reason for reason in explained.reasons)


@on_sqlite
def test_how_far_its_policy_has_learned(world):
    """The learner's word is in the status, on every arm that was offered, and among the reasons of a decision."""
    decision = world.judged(12)[-1]
    assert world.router.status().learning is None
    world.learn()
    read = world.router.status().learning
    assert set(read.arms) == set(decision.arms)
    assert all(one.worth >= 0.0 and one.labels >= 0 for one in read.arms.values())
    assert f"Its policy is now {read.line}." in told(world, decision).reasons
    for _ in range(STARVED):
        last = world.route()
    assert world.router.status().learning.state == "starved"
    world.feedback(last, reward=0.5)
    world.learn()
    assert world.router.status().learning.state != "starved"


ROW = {"above": 200000, "tier": "flex", "hours": "16:30-00:30"}


@pytest.mark.parametrize(
    ("cost", "made_by", "words"),
    [
        ({"dollars": 0.1}, {}, "token_prices of m"),
        ({"dollars": 0.1, "price": {"by": "told"}}, {}, "told by the model's server"),
        ({"assumed_dollars": 0.1}, {}, "none: the most expensive listed price is assumed"),
        (
            {"dollars": 0.1, "price": {"model": "n", "row": {"tier": "flex"}}},
            {},
            "token_prices of n, the row for the tier flex",
        ),
        (
            {"dollars": 0.1, "price": {"row": ROW}},
            {},
            "token_prices of m, the row for prompts above 200000 tokens and the tier flex and 16:30-00:30 UTC",
        ),
        (
            {"dollars": 0.1, "price": {"refused": "5"}},
            {},
            "token_prices of m (its server told $5, which is implausible and does not count)",
        ),
        ({"dollars": 0.1}, {"arm": "http"}, "reported with the answer"),
        ({"dollars": 0.1}, {"arm": "cascade"}, "token_prices of the model of its part"),
        ({}, {}, None),
    ],
)
def test_by_which_price_an_answer_was_booked(world, cost, made_by, words):
    """The explanation names the list and its row, the server that reported the price, or says that it is assumed."""
    decision = world.route("Who wrote Dracula?", ours=True)
    made = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="Bram Stoker")
    by = {"arm": "single_step", "generator": "m"} | made_by
    world.store.add_outcome(replace(made, run_by="worker", made_by=by, cost=Cost(**cost)))
    explained = told(world, decision)
    assert explained.price == words
    reported = replace(explained.record.outcome, run_by="caller", cost=Cost(dollars=0.1))
    assert booked_price(reported) == "reported with the answer"
