"""Loops of tools over HTTP: a model whose calls are all named call_0, several callers, and results sent again."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import update

from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.sql.tables import outcomes

IDS = ("call_0", "call_1")
CALLS = [{"id": one, "type": "function", "function": {"name": "tide", "arguments": "{}"}} for one in IDS]
TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}]
MODEL = {"name": "openai", "model": "m", "context_tokens": 4000, "openai": {"base_url": "http://127.0.0.1:9/v1"}}


@pytest.fixture
def loops(serve, answering):
    """A function: a client with a key of its own, of a service whose two arms always ask for the same two calls."""
    service = serve(
        arms={name: {"class": "model"} for name in ("small", "large")},
        generator=MODEL,
        conversation={"tool_turns": 4, "rewrite": {"by": "off"}},
    )
    reply = {"message": {"tool_calls": CALLS}, "finish_reason": "tool_calls"}
    answering(service, answer="I look.", reply=reply, stop_reason="tool_calls")
    clients = []

    def client(**scopes):
        new = KeyStore(service.router.database).create(
            name="test", role="app", now=time.time(), actor="cli:test", scopes=scopes
        )
        service.app.state.gate.ring.known = None
        headers = {"authorization": f"Bearer {new.text}"}
        clients.append(httpx.Client(base_url=service.url, timeout=60, headers=headers))
        return clients[-1]

    client.router = service.router
    yield client
    for one in clients:
        one.close()


def chat(messages, model="auto"):
    return {"model": model, "tools": TOOLS, "messages": messages}


def ask(client, messages, *, model="auto", **more):
    reply = client.post("/v1/chat/completions", json=chat(messages, model), **more)
    assert reply.status_code == 200, reply.text
    return reply.json()["id"].removeprefix("chatcmpl-")


def question(text="When is high tide?"):
    return [{"role": "user", "content": text}]


def with_results(messages, *results, order=1, content=None):
    """The conversation with the model's calls, and a result for each."""
    said = [
        {"role": "tool", "tool_call_id": one, "content": text}
        for one, text in zip(IDS, results or ("noon", "six"), strict=True)
    ]
    return [*messages, {"role": "assistant", "content": content, "tool_calls": CALLS}, *said[::order]]


def turn(router, key):
    """The first decision of a turn's loop and the turn's number; None if the decision drew its arm."""
    query = router.decision(key).decision.query
    loop = query.continues.loop
    assert (query.arm_by is not None) == (loop is not None)
    return None if loop is None else (loop.first, loop.turn)


def test_callers_whose_calls_have_the_same_ids(loops):
    """Two callers at once, each with several questions: every result goes to the decision that asked for it."""
    ann, bob = loops(), loops()
    asked = [(who, question(f"Question {number}?")) for number in range(5) for who in (ann, bob)]

    def two_turns(one):
        who, messages = one
        first = ask(who, messages)
        second = ask(who, with_results(messages, content=""))
        return first, second, ask(who, with_results(with_results(messages, order=-1)))

    with ThreadPoolExecutor(4) as pool:
        for first, second, third in pool.map(two_turns, asked):
            assert (turn(loops.router, second), turn(loops.router, third)) == ((first, 2), (first, 3))
            assert {loops.router.decision(key).decision.arm for key in (first, second, third)} == {
                loops.router.decision(first).decision.arm
            }


def test_an_id_is_no_ticket_for_an_arm(loops):
    """60 other questions with the ids of one call are draws, and so are other callers' results and second results."""
    own, other = loops(forced=False), loops()
    first = ask(own, question())
    keys = [ask(own, with_results(question(f"Other question {number}?"))) for number in range(60)]
    assert {turn(loops.router, key) for key in keys} == {None}
    assert len({loops.router.decision(key).decision.arm for key in keys}) == 2
    assert turn(loops.router, ask(other, with_results(question()))) is None
    assert turn(loops.router, ask(own, with_results(question()))) == (first, 2)
    again = [turn(loops.router, ask(own, with_results(question(), "dawn", f"at {hour}"))) for hour in range(5)]
    assert again == [None] * 5
    assert loops.router.decision(first).outcome.cost.llm_calls == 6  # 3 of each of its two turns


def test_the_same_request_again_is_the_same_turn(loops):
    """Ten times at once it is one turn and one cost; of ten with other results one is the turn, nine are draws."""
    own = loops()
    first = ask(own, question())
    with ThreadPoolExecutor(10) as pool:
        keys = set(pool.map(lambda _: ask(own, with_results(question())), range(10)))
        assert [turn(loops.router, key) for key in keys] == [(first, 2)]
        arm = {"small": "large", "large": "small"}[loops.router.decision(first).decision.arm]
        assert ask(own, with_results(question()), model=f"arm/{arm}") not in keys
        second = ask(own, question("And low tide?"))
        bodies = [with_results(question("And low tide?"), "now", str(number)) for number in range(10)]
        turns = Counter(turn(loops.router, key) for key in pool.map(lambda body: ask(own, body), bodies))
    assert turns == {(second, 2): 1, None: 9}
    for key in (first, second):
        assert loops.router.decision(key).outcome.cost.llm_calls == 6


def test_a_preview_of_results_shows_the_arm_of_their_calls(loops):
    """Before and after the turn is stored, the preview names its decision and its only arm, and takes no call."""
    own = loops(forced=False)
    first = ask(own, question())
    arm, sent = loops.router.decision(first).decision.arm, with_results(question())
    for _ in range(2):
        for more in ({}, {"stream": True}):
            reply = own.post("/v1/chat/completions", json=chat(sent) | more, headers={"x-ragbandit-preview": "true"})
            shown = reply.json()
            assert (reply.status_code, shown["turn_of"], [one["arm"] for one in shown["arms"]]) == (200, first, [arm])
        assert turn(loops.router, ask(own, sent)) == (first, 2)


def test_a_turn_under_an_id_of_its_own(loops):
    """A turn that failed is repeated under its own id; the same request without the id is asked again, by a draw."""
    own, database = loops(), loops.router.database
    first = ask(own, question())
    keys = [ask(own, with_results(question()), headers={"idempotency-key": "mine"}) for _ in range(2)]
    assert (keys, turn(loops.router, "mine")) == (["mine", "mine"], (first, 2))
    assert ask(own, with_results(question())) == "mine"
    with database.write() as connection:
        connection.execute(update(outcomes).where(outcomes.c.decision_id == "mine").values(status="failed"))
    reply = own.post("/v1/chat/completions", json=chat(with_results(question())), headers={"idempotency-key": "mine"})
    assert (reply.status_code, reply.headers["x-ragbandit-decision-id"]) == (500, "mine")
    assert turn(loops.router, ask(own, with_results(question()))) is None


def test_a_loop_ends_at_its_number_of_turns(loops):
    """The number counts the turns that are stored: the request after `conversation.tool_turns` begins a new loop."""
    own, messages, turns = loops(), question(), []
    for _ in range(6):
        turns.append(turn(loops.router, ask(own, messages)))
        messages = with_results(messages)
    assert [one and one[1] for one in turns] == [None, 2, 3, 4, None, 2]


def test_reminders_and_split_answers_continue_their_arm(loops):
    """System messages behind results, and an answer sent as several messages, are no reason for another draw."""
    own = loops()
    reminder = {"role": "system", "content": "The list is empty."}
    first = ask(own, [*question(), reminder])
    key = ask(own, [*with_results([*question(), reminder]), reminder, {"role": "developer", "content": "Go on."}])
    assert turn(loops.router, key) == (first, 2)
    answer, *results = with_results(question("When is low tide?"))[1:]
    first = ask(own, question("When is low tide?"))
    parts = [{**answer, "tool_calls": [call]} for call in CALLS]
    key = ask(own, [*question("When is low tide?"), parts[0], results[0], parts[1], results[1]])
    assert turn(loops.router, key) == (first, 2)
