"""Tasks over HTTP: which requests of chats belong to one task, and how it ends."""

import time

import httpx
import pytest

from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.rows.conversion import query_hash
from ragbandit.shared.types import DERIVED, Query, TaskTurn
from ragbandit.testing.openai_server import ScriptedServer
from tests.support.additions import needs

MODEL = {"name": "openai", "model": "m", "context_tokens": 4000, "openai": {"base_url": "http://127.0.0.1:9/v1"}}
FIRST = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When is high tide?"}]
#: the same chat as another client writes it, with the answer, and the next question
SECOND = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": [{"type": "text", "text": "When is high tide?"}]},
    {"role": "assistant", "content": "At  noon."},
    {"role": "user", "content": "And low tide?"},
]
THIRD = [*SECOND, {"role": "assistant", "content": "At noon."}, {"role": "user", "content": "Thanks. And tomorrow?"}]
CALLS = [{"id": "call_0", "type": "function", "function": {"name": "tide", "arguments": "{}"}}]
TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}]
RESULT = {"role": "tool", "tool_call_id": "call_0", "content": "noon"}


class Chats:
    """A service whose requests of chats and messages are tasks, and its callers."""

    def __init__(self, service, *, keys):
        self.service, self.router = service, service.router
        store = KeyStore(service.router.database)
        made = [store.create(name="t", role="app", now=time.time(), actor="cli:test", scopes={}) for _ in range(keys)]
        service.app.state.gate.ring.known = None
        self.keys = [key.text for key in made]

    def send(self, path, body, *, key=0, **headers):
        headers = {"authorization": f"Bearer {self.keys[key]}", **headers}
        return httpx.post(self.service.url + path, json=body, headers=headers, timeout=60)

    def post(self, messages=None, *, key=0, headers=None, **body):
        path, sent = "/v1/responses", {"model": "auto", **body}
        if messages is not None:
            path, sent = "/v1/chat/completions", sent | {"messages": messages}
        reply = self.send(path, sent, key=key, **(headers or {}))
        assert reply.status_code == 200, reply.text
        return self.router.decision(reply.json()["id"].removeprefix("chatcmpl-")).decision


@pytest.fixture
def chats(serve, answering):
    """A function that starts the service with these answers."""

    def start(*, keys=1, calls=False, sections=None, **conversation):
        service = serve(
            arms={name: {"class": "model"} for name in ("small", "large")},
            generator=MODEL,
            conversation={"rewrite": {"by": "off"}, "unit": "task", **conversation},
            **(sections or {}),
        )
        more = {}
        if calls:
            more = {"reply": {"message": {"tool_calls": CALLS}, "finish_reason": "tool_calls"}}
            more["stop_reason"] = "tool_calls"
        answering(service, answer="" if calls else "At noon.", **more)
        return Chats(service, keys=keys)

    return start


def number(decision):
    task = TaskTurn.of(decision.facts)
    return None if task is None else task.turn


def test_a_chat_without_an_id_goes_on_after_an_answer_of_ours(chats):
    """The history must hold an answer that we gave in it; equal first words do not join two chats, nor do two keys."""
    world = chats(keys=2)
    first = world.post(FIRST)
    assert first.query.session.startswith(DERIVED)
    second, third = world.post(SECOND), world.post(THIRD)
    assert [(one.turn_of, one.arm, number(one)) for one in (second, third)] == [
        (first.id, first.arm, 2),
        (first.id, first.arm, 3),
    ]
    same_words = world.post(FIRST)
    assert (same_words.turn_of, same_words.query.session != first.query.session) == (None, True)
    stranger = world.post(THIRD, key=1)
    assert stranger.turn_of is None
    other_answer = [*FIRST, {"role": "assistant", "content": "At six."}, {"role": "user", "content": "And low tide?"}]
    assert world.post(other_answer).turn_of is None
    query = Query(text="When is high tide?")
    assert query_hash(Query(text=query.text, session=first.query.session), run_by="worker") == query_hash(
        query, run_by="worker"
    )


@pytest.mark.parametrize(
    "name",
    ["x-ragbandit-session-id", "x-claude-code-session-id", "session_id", "x-openwebui-chat-id"],
)
def test_ids_of_clients(chats, name):
    """A header of a client names the conversation; agents in it, and other models, have tasks of their own."""
    world = chats()
    headers = {name: "conversation 17"}
    first = world.post(FIRST, headers=headers)
    assert first.query.session == "conversation 17"
    assert world.post(FIRST, headers=headers).turn_of == first.id
    agent = world.post(FIRST, headers={**headers, "x-claude-code-agent-id": "sub-1"})
    assert agent.turn_of is None
    assert world.post(FIRST, headers={**headers, "x-claude-code-agent-id": "sub-1"}).turn_of == agent.id
    assert world.post(FIRST, headers={name: "{{CHAT_ID}}"}).turn_of is None
    assert world.post(FIRST, headers=headers).turn_of == first.id


def test_small_requests_of_an_agent_are_no_turns(chats):
    """Requests for a model of `one_turn_models`, and for a named arm, are units of their own, before and after."""
    world = chats(one_turn_models=["auto:title", "arm/small"])
    headers = {"x-ragbandit-session-id": "s"}
    title = world.post(FIRST, headers=headers, model="arm/small")
    first = world.post(FIRST, headers=headers)
    again = world.post(FIRST, headers=headers, model="arm/small")
    assert [number(one) for one in (title, first, again)] == [None, 1, None]
    assert (title.turn_of, again.turn_of) == (None, None)
    assert world.post(FIRST, headers=headers).turn_of == first.id


def test_a_request_chooses_its_unit(chats):
    """The header x-ragbandit-unit, within what the key may choose; another word is refused."""
    world = chats(unit="turn")
    headers = {"x-ragbandit-session-id": "s"}
    assert number(world.post(FIRST, headers=headers)) is None
    assert number(world.post(FIRST, headers={**headers, "x-ragbandit-unit": "task"})) == 1
    reply = world.send("/v1/chat/completions", {"model": "auto", "messages": FIRST}, **{"x-ragbandit-unit": "chat"})
    assert reply.status_code == 400
    assert "x-ragbandit-unit" in reply.text


@needs("responses")
def test_responses_of_a_chain_are_a_task(chats):
    """`previous_response_id` continues the task of the response that it names."""
    world = chats()
    first = world.post(input="When is high tide?")
    assert (first.query.session, number(first)) == (first.id, 1)
    second = world.post(input="And low tide?", previous_response_id=first.id)
    assert (second.turn_of, second.arm) == (first.id, first.arm)


def test_results_of_tools_are_turns_of_the_task(chats):
    """A loop of tools within a task belongs to the task's decision, with and without an id of the chat."""
    world = chats(calls=True)
    for headers in ({}, {"x-ragbandit-session-id": "s"}):
        first = world.post(FIRST, headers=headers, tools=TOOLS)
        messages = [*FIRST]
        for turn in (2, 3):
            messages += [{"role": "assistant", "content": None, "tool_calls": CALLS}, RESULT | {"content": f"{turn}"}]
            decision = world.post(messages, headers=headers, tools=TOOLS)
            assert (decision.turn_of, decision.arm, number(decision)) == (first.id, first.arm, turn)
    assert world.router.status().counters.decided == 2


def test_a_session_is_ended_and_judged(chats):
    """The judgement counts for the decision of the newest open task, and the task is learned at once."""
    world = chats()
    headers = {"x-ragbandit-session-id": "ticket/17"}
    first = world.post(FIRST, headers=headers)
    world.post(SECOND, headers=headers)
    assert world.router.learn() == 0
    path = "/v1/sessions/ticket%2F17/end"
    reply = world.send(path, {"feedback": {"rating": True, "source": "code"}})
    assert reply.status_code == 200, reply.text
    assert (reply.json()["decision_id"], reply.json()["ended"]) == (first.id, 1)
    assert reply.json()["feedback"]["late"] is False
    assert world.router.learn() == 1
    assert world.send(path, {}).json() == {"decision_id": first.id, "ended": 0, "feedback": None}
    assert world.post(FIRST, headers=headers).turn_of is None
    unknown = world.send("/v1/sessions/nobody/end", {})
    assert (unknown.status_code, unknown.json()["error"]["field"]) == (404, "session_id")
    assert world.send(path, {"feedback": {"rating": 7}}).status_code == 422


@needs("anthropic", "responses")
def test_a_preview_draws_and_stores_nothing(chats):
    """At each interface: the arms with their probabilities, and the decision of which the request would be a turn."""
    world = chats()
    preview = {"x-ragbandit-preview": "true", "x-ragbandit-session-id": "s"}
    chat, response = {"model": "auto", "messages": FIRST}, {"model": "auto", "input": "When is high tide?"}
    message = {"model": "auto", "max_tokens": 9, "messages": FIRST[1:]}
    bodies = {
        "/v1/chat/completions": chat,
        "/v1/responses": response,
        "/v1/messages": message,
        "/v1/route": {"question": "When is high tide?", "arms": ["small", "large"]},
    }
    for path, body in bodies.items():
        shown = world.send(path, body, **preview)
        assert shown.status_code == 200, shown.text
        arms = {entry["arm"]: entry["probability"] for entry in shown.json()["arms"]}
        assert set(arms) == {"small", "large"}
        assert sum(arms.values()) == pytest.approx(1.0)
        assert shown.json()["turn_of"] is None
    assert world.router.status().counters.decided == 0
    first = world.post(FIRST, headers={"x-ragbandit-session-id": "s"})
    shown = world.send("/v1/chat/completions", chat, **preview).json()
    assert (shown["turn_of"], [entry["arm"] for entry in shown["arms"]]) == (first.id, [first.arm])
    assert world.router.status().counters.decided == 1
    streamed = world.send("/v1/chat/completions", {**chat, "stream": True}, **preview)
    assert streamed.json()["turn_of"] == first.id


def test_a_turn_says_what_the_policy_would_choose_now(chats):
    """The explanation of a later turn names the arm that the policy has come to prefer since the task began."""
    world = chats()
    headers = {"x-ragbandit-session-id": "s"}
    first = world.post(FIRST, headers=headers)
    other = "large" if first.arm == "small" else "small"
    for number in range(60):
        decision = world.router.route(Query(text=f"question {number}", arms=(first.arm, other)))
        world.router.feedback(decision.id, reward=1.0 if decision.arm == other else 0.0)
    world.router.learn()
    second = world.post(FIRST, headers=headers)
    assert second.turn_of == first.id
    headers = {"authorization": f"Bearer {world.keys[0]}"}
    shown = httpx.get(f"{world.service.url}/v1/decisions/{second.id}/explanation", headers=headers).json()
    assert any(f"the policy would now prefer {other}" in reason for reason in shown["reasons"]), shown["reasons"]


def test_an_end_that_comes_again(chats):
    """A repeated request with the same feedback id judges the same task, and does not end a task that began later."""
    world = chats()
    headers = {"x-ragbandit-session-id": "s"}
    first = world.post(FIRST, headers=headers)
    judgement = {"feedback": {"rating": True, "feedback_id": "once"}}
    assert world.send("/v1/sessions/s/end", judgement).json()["decision_id"] == first.id
    second = world.post(FIRST, headers=headers)
    assert second.turn_of is None
    again = world.send("/v1/sessions/s/end", judgement)
    assert again.status_code == 200, again.text
    assert (again.json()["decision_id"], again.json()["ended"], again.json()["feedback"]["duplicate"]) == (
        first.id,
        0,
        True,
    )
    assert world.post(FIRST, headers=headers).turn_of == second.id
    assert world.router.learn() == 1


@needs("responses")
def test_each_response_of_a_task_keeps_its_answer(serve):
    """The first response of a task has its own answer after later turns: read, repeated, and in the history of a chain
    of which the model gets every answer once.
    """
    with ScriptedServer(lambda sent: f"Answer {len(sent['messages'])}.") as server:
        model = MODEL | {"openai": {"base_url": server.url}}
        more = {"arms": {"small": {"class": "model"}}, "conversation": {"unit": "task"}}
        service = serve(generator=model, inline=True, **more)
        body = {"model": "auto", "input": "When is high tide?"}

        def ask(text, previous=None, key=None):
            headers = {} if key is None else {"idempotency-key": key}
            reply = service.http.post(
                "/v1/responses", json={**body, "input": text, "previous_response_id": previous}, headers=headers
            )
            assert reply.status_code == 200, reply.text
            return reply.json()

        first = ask("When is high tide?", key="resp_first")
        second = ask("And low tide?", previous=first["id"])
        third = ask("Thanks.", previous=second["id"])
        assert service.router.decision(third["id"]).decision.turn_of == first["id"]
        texts = [message["content"] for message in server.requests[-1].body["messages"]]
        assert texts == ["When is high tide?", "Answer 1.", "And low tide?", "Answer 3.", "Thanks."]
        again = ask("When is high tide?", key="resp_first")
        assert again["output"] == first["output"]
        assert service.http.get(f"/v1/responses/{first['id']}").json()["output"] == first["output"]
        assert service.router.decision(first["id"]).outcome.cost.turns == 2


def test_a_key_has_a_unit(chats):
    """The scope `unit` sets it for all questions of a key; a header cannot change it, and titles stay single turns."""
    world = chats(unit="turn", one_turn_models=["auto:title*"])
    store = KeyStore(world.router.database)
    scopes = {"unit": "task", "forced": False}
    world.keys[0] = store.create(name="a", role="app", now=time.time(), actor="cli:test", scopes=scopes).text
    world.service.app.state.gate.ring.known = None
    headers = {"x-ragbandit-session-id": "s"}
    assert number(world.post(FIRST, headers=headers)) == 1
    assert number(world.post(FIRST, headers={**headers, "x-ragbandit-unit": "task"})) == 2
    refused = world.send(
        "/v1/chat/completions", {"model": "auto", "messages": FIRST}, **headers, **{"x-ragbandit-unit": "turn"}
    )
    assert refused.status_code == 403
    assert "unit" in refused.json()["error"]["param"]
    reply = world.send("/v1/route", {"question": "when?", "session_id": "t"})
    assert number(world.router.decision(reply.json()["decision_id"]).decision) == 1
