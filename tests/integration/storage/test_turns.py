"""Tool turns in the store: their share in the decision, look-up, counting once, and erasure."""

import time
from dataclasses import replace

import pytest
from sqlalchemy import select

from ragbandit.router.storage.decisions.continuing import RESULTS, calls_key, earlier_turn
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.erasure import Selection, erasable, erase
from ragbandit.router.storage.jobs.scores import JudgeSample
from ragbandit.router.storage.rows.outcome_rows import own_cost
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.router.storage.sql.tables import decisions, jobs, outcomes
from ragbandit.shared.types import Continues, Conversation, Cost, DecisionId, Feedback, FeedbackId, Loop, Outcome
from tests.support.arms.answer_jobs import decision_for

NOW = time.time()


def decision(key, *, first=None, previous=None, turn=0, tenant="default", said="s", at=NOW):
    made = decision_for("small")
    loop = None if first is None else Loop(first=first, previous=previous or first, turn=turn)
    continues = Continues(conversation=said, chat=f"chat {key[:2]}", loop=loop)
    chat = Conversation(fields={"messages": [{"role": "user", "content": "a secret"}]})
    query = replace(made.query, tenant=tenant, arm_by=first and "calls", continues=continues, conversation=chat)
    return replace(made, id=DecisionId(key), query=query, made_at=at + turn, turn_of=first and DecisionId(first))


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
        (decision("d2", first="d1", turn=2, said="s2"), outcome("d2", "c3", tokens=200)),
        (decision("d3", first="d1", previous="d2", turn=3, said="s3"), outcome("d3", answer="sun", tokens=300)),
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
        feedback = Feedback(
            id=FeedbackId(f"f-{key}"),
            decision_id=DecisionId(key),
            kind="rating",
            value=1.0,
            source="human",
            received_at=NOW,
        )
        assert loop.add_feedback([feedback])[0].duplicate is False
    assert len(loop.record(DecisionId("d1")).feedback) == 2
    assert loop.record(DecisionId("d3")).feedback == loop.record(DecisionId("d1")).feedback


def found(store, said, *calls, chat=None, since=0.0, **more):
    query = replace(decision("new").query, id=None, continues=Continues(chat=chat, **more))
    keys = {"calls": [calls_key(said, calls)], "answered": None}
    limits = {"calls_since": since, "chats_since": None, "arms": ["small"], "turns_most": 50}
    return earlier_turn(store.database, query, **keys, **limits)


def linked(*found_by, **more):
    """The link of the turn that brings these results to the turn with the calls."""
    return found(*found_by, **more).loop


def test_results_find_the_calls_of_their_conversation(store):
    """All ids and the conversation must agree; of two decisions alike only the caller can name one."""
    for key, said in (("d1", "ann"), ("d2", "bob")):
        store.add_decisions([decision(key, said=said)])
        store.add_outcome(outcome(key, "call_0", "call_1"))
    turn = found(store, "ann", "call_1", "call_0")
    assert turn.arm == "small"
    assert turn.loop == Loop(first="d1", previous="d1", turn=2)
    assert linked(store, "bob", "call_0", "call_1").first == "d2"
    for said, calls in (("eve", ("call_0", "call_1")), ("ann", ("call_0",)), ("ann", ("call_0", "call_1", "call_2"))):
        assert found(store, said, *calls) is None
    assert found(store, "ann", "call_0", "call_1", since=NOW) is None
    store.add_decisions([decision("d3", said="ann")])
    store.add_outcome(outcome("d3", "call_0", "call_1"))
    assert found(store, "ann", "call_0", "call_1") is None
    assert linked(store, "ann", "call_0", "call_1", previous="d3").first == "d3"
    for calls in ((), ("",), ("call_0", "call_0"), ("call_0", " ")):
        assert calls_key("ann", calls) is None
    assert calls_key(None, ("call_0",)) is None


def test_results_are_taken_once(store):
    """Two turns bring results at once: one is stored, its request finds it again, and the loop goes on."""
    store.add_decisions([decision("d1")])
    store.add_outcome(outcome("d1", "c1"))
    turns = [decision(key, first="d1", turn=2, said=key) for key in ("t1", "t2")]
    stored, refused = store.add_decisions(turns)
    assert (stored.id, refused.field) == ("t1", RESULTS)
    assert store.add_decisions([turns[0]])[0].id == "t1"
    assert store.add_decisions([turns[1]])[0].field == RESULTS
    assert store.decisions_by_id(["t2"]) == {}
    with store.database.read() as connection:
        assert stored_counts(connection, label="main") == row_counts(connection, label="main")
    assert found(store, "s", "c1", chat="chat t1").same == "t1"
    assert found(store, "s", "c1", chat="chat t2") is None
    store.add_outcome(replace(outcome("t1", "c2"), status="failed", answer=None))
    assert found(store, "s", "c1", chat="chat t1") is None
    assert linked(store, "t1", "c2").turn == 3


def test_a_loop_without_stored_texts(database):
    """With log.text none a loop still has its number, its costs and its feedback, and no text is stored."""
    store = DecisionStore(database, label="main", text="none")
    store.add_decisions([decision("d1")])
    store.add_outcome(outcome("d1", "c1"))
    store.add_decisions([decision("d2", first="d1", turn=2, said="s2")])
    store.add_outcome(outcome("d2", "c2", answer="a secret"))
    assert linked(store, "s2", "c2").turn == 3
    whole = store.outcomes_by_id(["d1"])["d1"]
    assert (whole.cost.dollars, whole.answer, whole.trace) == (1.0, None, ())


@pytest.mark.parametrize(
    "meant",
    [
        *(Selection(decision=key) for key in ("d1", "d2", "d4")),
        Selection(before=NOW + 1.0),
        Selection(tenant="default"),
    ],
    ids=["first", "turn", "last", "before", "tenant"],
)
def test_a_loop_is_erased_whole(loop, meant):
    """Any part takes the others along: answers, replies, keys of calls, the chat of a turn that waits, late answers."""
    loop.add_decisions([decision("d4", first="d1", previous="d3", turn=4)])
    loop.add_decisions([decision("other", tenant="b", at=NOW + 9)])
    loop.add_outcome(outcome("other", "c9"))
    for wildcards in ("__", "D_"):
        assert erasable(loop.database, Selection(decision=wildcards)).decisions == 0
    assert erasable(loop.database, meant).decisions == 4
    assert erase(loop.database, meant, features=False, actor="test", now=NOW).decisions == 4
    loop.add_outcome(outcome("d4", "c5", answer="a secret"))
    known = loop.outcomes_by_id(["d1", "d2", "d3", "d4"])
    assert {(one.answer, tuple(one.reply)) for one in known.values()} == {(None, ())}
    assert [found(loop, said, *calls) for said, calls in (("s", ("c1", "c2")), ("s2", ("c3",)))] == [None, None]
    with loop.database.read() as connection:
        rows = connection.execute(select(decisions.c.id, decisions.c.text)).all()
        assert set(connection.execute(select(jobs.c.facts).where(jobs.c.kind == "answer")).scalars()) <= {"{}"}
        assert "a secret" not in str(connection.execute(select(outcomes)).all())
    assert {row.id for row in rows if row.text} == {"other"}
    assert erase(loop.database, Selection(decision="d3"), features=False, actor="test", now=NOW).decisions == 4
