"""Conversations through a router: the rewrite by a real client and a scripted server, ids, stored history."""

import threading
import time

import pytest
from sqlalchemy import select

from ragbandit.router.serving import asked_model
from ragbandit.router.serving.conversations import with_chat
from ragbandit.router.storage.access.spending import Spender, read_spending
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import Conflict
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import DecisionId, Message, Query
from ragbandit.testing.openai_server import Reply, ScriptedServer

SPENDER = Spender("tenant", "default")
SECRET = "Zygmunt-Przybylski"
ASKED, ALONE = "And when was he born?", f"When was {SECRET} born?"
TALK = (
    Message(role="system", text="Be kind."),
    Message(role="user", text=f"Who is {SECRET}?"),
    Message(role="assistant", text="A painter."),
    Message(role="user", text=ASKED),
)
pytestmark = pytest.mark.timeout(60)


def rewritten_by(server, **rewrite):
    """Settings of a rewrite by this server."""
    chosen = {
        "name": "openai",
        "model": "small",
        "openai": {"base_url": server.url, "token_prices": {"small": [1.0, 2.0]}},
    }
    return {"rewrite": {"generator": chosen, "seconds": 20.0, **rewrite}}


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


def test_the_question_is_rewritten_and_both_are_kept(make_world):
    """The rewritten question is routed; the store also has the user's words, the turns and the cost of the rewrite."""
    with ScriptedServer([ALONE]) as server:
        world = make_world(conversation=rewritten_by(server))
        query = world.router.query_of_messages(TALK, query=Query(text="", session="chat-1", tenant="acme"))
        decision = world.router.route(query)
        (request,) = server.requests
    kept = world.router.decision(decision.id).decision
    assert (kept.id, kept.query, kept.pmf, kept.arm) == (decision.id, decision.query, decision.pmf, decision.arm)
    assert (kept.query.text, kept.query.asked, kept.query.session) == (ALONE, ASKED, "chat-1")
    assert kept.query.messages == TALK[:3]
    facts = kept.query.sent.rewrite
    assert facts["by"] == "small"
    assert facts["prompt_tokens"] + 2 * facts["completion_tokens"] == pytest.approx(facts["dollars"] * 1e6)
    assert 0.0 < facts["seconds"] < 20.0
    assert "failed" not in facts
    assert request.body["temperature"] == 0.0
    assert dict(world.router.conversations.rewriter.results) == {"rewritten": 1}


@pytest.mark.parametrize(
    ("reply", "failed", "is_booked"),
    [
        (Reply(status=500), "http_500", False),
        (Reply(text=" "), "empty", True),
        (Reply(text="word " * 1000, obedient=False), "too_long", True),
        (Reply(body=b"{}"), "malformed", False),
        (Reply(body=b'{"error": {"message": "no"}, "usage": {"cost": 0.001}}'), "malformed", True),
        (Reply(text=ALONE, seconds=20.0), "timeout", True),
    ],
)
def test_a_rewrite_that_fails_costs_no_answer(make_world, reply, failed, is_booked):
    """Broken, slow, empty or endless: the user's words are the question, and the reason and the cost are stored."""
    with ScriptedServer(lambda _body: reply) as server:
        world = make_world(conversation=rewritten_by(server, seconds=3.0 if failed == "timeout" else 20.0))
        decision = world.router.route(world.router.query_of_messages(TALK))
    assert (decision.query.text, decision.query.asked) == (ASKED, ASKED)
    facts = decision.query.sent.rewrite
    assert (facts["failed"], "dollars" in facts) == (failed, is_booked)
    with world.database.read() as connection:
        booked = read_spending(connection, [SPENDER], now=time.time())[SPENDER].month
    assert booked == pytest.approx(facts.get("dollars", 0.0), abs=1e-9)
    assert dict(world.router.conversations.rewriter.results) == {failed: 1}


def test_tokens_of_a_rewrite_that_did_not_end_are_estimated_by_script(make_world):
    """The prompt of a call without usage counts as everywhere else: a Chinese character is about a token."""
    talk = (*TALK[:3], Message(role="user", text="他是什么时候出生的" * 40))
    with ScriptedServer([Reply(text=ALONE, seconds=20.0)]) as server:
        world = make_world(conversation=rewritten_by(server, seconds=3.0))
        query = world.router.query_of_messages(talk, query=Query(text=""))
        (request,) = server.requests
    facts = query.sent.rewrite
    assert facts["failed"] == "timeout"
    assert facts["prompt_tokens"] == sum(estimated_tokens(message["content"]) for message in request.body["messages"])
    assert facts["prompt_tokens"] > 400


def test_a_server_that_is_gone_is_left_alone_for_a_while(make_world):
    """After three failures in a row questions go on without it at once."""
    with ScriptedServer([]) as server:
        settings = rewritten_by(server)
    world = make_world(conversation=settings)
    failed = [world.router.query_of_messages(TALK).sent.rewrite["failed"] for _ in range(5)]
    assert failed == ["connection", "connection", "connection", "down", "down"]


def test_only_so_many_rewrites_are_under_way(make_world, monkeypatch):
    """A burst does not pile up at the model: questions beyond the cap are used as they are."""
    go = threading.Event()

    def reply(_body):
        go.wait(20)
        return ALONE

    with ScriptedServer(reply) as server:
        monkeypatch.setattr(asked_model, "MOST_UNDER_WAY", 2)
        world = make_world(conversation=rewritten_by(server))
        asked = with_chat(None, TALK, settings=world.router.settings.conversation)
        futures = [world.router.conversations.rewrite(asked) for _ in range(4)]
        late = [future.result(20) for future in futures[2:]]
        go.set()
        first = [future.result(20) for future in futures[:2]]
        again = world.router.query_of_messages(TALK)
    assert [query.sent.rewrite["failed"] for query in late] == ["busy", "busy"]
    assert [query.text for query in (*first, again)] == [ALONE] * 3


def test_the_same_request_again_is_the_same_decision(make_world):
    """Under its id the chat gets the decision that stands, and the rewrite of then; another chat is a conflict."""
    with ScriptedServer([ALONE, "Something else?"]) as server:
        world = make_world(conversation=rewritten_by(server))
        named = Query(text="", id=DecisionId("d1"))
        decision = world.router.route(world.router.query_of_messages(TALK, query=named))
        again = world.router.query_of_messages(TALK, query=named)
        assert (again.text, len(server.requests)) == (ALONE, 1)
        assert world.router.route(again).id == decision.id
        other = (*TALK[:2], Message(role="assistant", text="A poet."), TALK[3])
        with pytest.raises(Conflict):
            world.router.route(world.router.query_of_messages(other, query=named))
    assert world.counters().decided == 1


def test_no_text_of_a_conversation_is_kept(make_world):
    """log.text: none keeps no word of it, only the session; a repetition is known all the same."""
    arms = {name: {"run_by": "caller"} for name in ("no_retrieval", "single_step")}
    with ScriptedServer([ALONE, ALONE]) as server:
        world = make_world(log={"text": "none"}, arms=arms, conversation=rewritten_by(server))
        named = Query(text="", id=DecisionId("d1"), session="chat-1")
        decision = world.router.route(world.router.query_of_messages(TALK, query=named))
        assert world.router.route(world.router.query_of_messages(TALK, query=named)).arm == decision.arm
    assert SECRET not in stored(world)
    assert ASKED not in stored(world)
    assert "chat-1" in stored(world)
    world.feedback(decision, reward=0.5)
    assert world.learn() == 1
    assert world.router.verify(deep=True).ok


def stored(world):
    with world.database.read() as connection:
        return "\n".join(str(row) for row in connection.execute(select(decisions)))


def test_erasure_takes_the_conversation_too(make_world):
    """Erased decisions have no turns, no words of the user, and still verify."""
    world = make_world()
    made = world.router.route(Query(text=ALONE, asked=ASKED, messages=TALK[:3], session="chat-1", id=DecisionId("d1")))
    erase(world.database, Selection(decision=made.id), features=False, actor="cli:me", now=world.now)
    assert SECRET not in stored(world)
    assert ASKED not in stored(world)
    kept = world.router.decision(made.id).decision
    assert (kept.query.messages, kept.query.asked, kept.arm) == ((), None, made.arm)
    assert world.router.verify(deep=True).ok
