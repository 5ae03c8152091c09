"""Tool turns in the store: what they add to their decision, who finds it, what is counted once, and what is erased."""

import time
from dataclasses import replace

import pytest
from sqlalchemy import select

from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.decisions.tool_turns import TOOL_TURN, next_turn
from ragbandit.router.storage.erasure import Selection, erasable, erase
from ragbandit.router.storage.rows.outcome_rows import JudgeSample, own_cost
from ragbandit.router.storage.sql.tables import answer_queue, jobs, outcomes
from ragbandit.shared.types import Cost, DecisionId, Feedback, FeedbackId, Outcome
from tests.support.arms.answer_jobs import decision_for

NOW = time.time()


def decision(key, *, first=None, turn=0, tenant="default"):
    made = decision_for("small")
    request = {} if first is None else {TOOL_TURN: {"first": first, "turn": turn}}
    chat = {"messages": [{"role": "user", "content": "a secret"}]}
    query = replace(made.query, tenant=tenant, forced=first is not None, request=request, chat=chat)
    return replace(made, id=DecisionId(key), query=query, made_at=NOW + turn)


def outcome(key, *calls, answer="", tokens=100):
    message = {"tool_calls": [{"id": one, "function": {"name": "f", "arguments": "{}"}} for one in calls]}
    return Outcome(
        decision_id=DecisionId(key),
        status="answered",
        answer=answer,
        trace=(),
        cost=Cost(llm_calls=1, prompt_tokens=tokens, seconds_total=1.0, dollars=0.5),
        steps=0.0,
        stop_reason="tool_calls" if calls else "answered",
        error=None,
        run_by="worker",
        made_by={},
        made_at=NOW + 1.0,
        reply={"message": message if calls else {}, "finish_reason": "tool_calls" if calls else "stop"},
    )


@pytest.fixture
def store(database):
    return DecisionStore(database, label="main", judge=JudgeSample(share=1.0, max_waiting=10))


@pytest.fixture
def loop(store):
    """Three turns: two that call tools, and the answer."""
    for made, ended in (
        (decision("d1"), outcome("d1", "c1", "c2")),
        (decision("d2", first="d1", turn=2), outcome("d2", "c3", tokens=200)),
        (decision("d3", first="d1", turn=3), outcome("d3", answer="sun", tokens=300)),
    ):
        store.add_decisions([made])
        store.add_outcome(ended)
    return store


def test_what_turns_use_is_added_to_their_decision(loop):
    """Cost, answer and stop reason are those of the loop; each turn keeps its own, and a repetition adds nothing."""
    assert loop.add_outcome(outcome("d3", answer="sun", tokens=300)) is False
    known = loop.outcomes_by_id(["d1", "d2", "d3"])
    whole = known["d1"]
    assert (whole.cost.prompt_tokens, whole.cost.llm_calls, whole.cost.dollars) == (600, 3, 1.5)
    assert (whole.answer, whole.stop_reason) == ("sun", "answered")
    assert [event.value for event in whole.trace] == ["d2: tool_calls", "d3: answered"]
    assert [known[key].cost.prompt_tokens for key in ("d2", "d3")] == [200, 300]
    with loop.database.read() as connection:
        costs = connection.execute(select(outcomes.c.cost)).scalars()
        assert sum(own_cost(text).dollars for text in costs) == 1.5  # what pages and budgets count, once


def test_the_judge_waits_for_the_answer(loop):
    """One judgement, of the decision that drew the arm, when its loop has ended."""
    with loop.database.read() as connection:
        assert list(connection.execute(select(jobs.c.decision_id)).scalars()) == ["d1"]


def test_feedback_on_a_turn_is_feedback_on_its_decision(loop):
    for key in ("d3", "d2"):
        made = Feedback(
            id=FeedbackId(f"f-{key}"),
            decision_id=DecisionId(key),
            kind="rating",
            value=1.0,
            source="human",
            received_at=NOW,
        )
        assert loop.add_feedback([made])[0].duplicate is False
    assert len(loop.record(DecisionId("d1")).feedback) == 2
    assert loop.record(DecisionId("d3")).feedback == ()


def test_who_finds_the_turn(loop):
    """By any call of the turn before that its first one is among; not those of another tenant, nor unknown ones."""
    turn = next_turn(loop.database, ["c2", "c1"], tenant="default")
    assert (turn.first, turn.number, turn.arm) == ("d1", 2, "small")
    turn = next_turn(loop.database, ["c3"], tenant="default")
    assert (turn.first, turn.number, turn.began_at) == ("d1", 3, NOW)
    assert next_turn(loop.database, ["c1"], tenant="other") is None
    assert next_turn(loop.database, ["c9"], tenant="default") is None


def test_a_loop_is_erased_whole(loop):
    """Its turns go with the decision: answers, replies, the keys of calls; a request that waits keeps no chat."""
    loop.add_decisions([decision("d4", first="d1", turn=4), decision("other"), decision("o2", first="D1", turn=2)])
    for wildcards in ("__", "D_"):
        assert erasable(loop.database, Selection(decision=wildcards)).decisions == 0
    erased = erase(loop.database, Selection(decision="d1"), features=False, actor="test", now=NOW)
    assert erased.decisions == 4
    known = loop.outcomes_by_id(["d1", "d2", "d3"])
    assert {(one.answer, tuple(one.reply)) for one in known.values()} == {(None, ())}
    assert next_turn(loop.database, ["c1"], tenant="default") is None
    with loop.database.read() as connection:
        rows = connection.execute(select(answer_queue.c.decision_id, answer_queue.c.chat)).all()
    assert {row.decision_id: row.chat is None for row in rows} == {"d4": True, "other": False, "o2": False}
