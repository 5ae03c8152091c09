"""Headers of questions: rules, previews, sessions, agents and keys hold alike at every interface."""

import itertools
import json
from dataclasses import dataclass

import httpx
import pytest

from ragbandit.shared.additions import additions
from ragbandit.shared.types import TaskTurn
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.additions import is_served, needs, only_with
from tests.support.servers.http_service import Keyed, Service

MCP = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
US = [("X-Region", "us")]
numbers = itertools.count(1)


def chat(question):
    return {"model": "auto", "messages": [{"role": "user", "content": question}]}


def tool(name):
    def body(question):
        params = {"name": name, "arguments": {"question": question}}
        return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    return body


#: door -> (path, function that makes the body of a question)
DOORS = {
    "route": ("/v1/route", lambda question: {"question": question}),
    "batch": ("/v1/route/batch", lambda question: {"items": [{"question": question}]}),
    "answer": ("/v1/answer?wait_s=20", lambda question: {"question": question}),
    "chat": ("/v1/chat/completions", chat),
    "responses": ("/v1/responses", lambda question: {"model": "auto", "input": question}),
    "messages": ("/v1/messages", lambda question: chat(question) | {"max_tokens": 9}),
}
if "mcp" in additions():
    DOORS |= {"mcp route": ("/mcp", tool("route")), "mcp answer": ("/mcp", tool("answer"))}
DOORS = {name: door for name, door in DOORS.items() if is_served(door[0])}
#: doors at which texts come, but nothing is decided
OTHERS = {
    **only_with(
        "embeddings",
        {"embeddings": ("/v1/embeddings", lambda question: {"model": "small", "input": question})},
    ),
    "completions": ("/v1/completions", lambda question: {"model": "auto", "prompt": question}),
    "tokens": ("/v1/messages/count_tokens", chat),
}
OTHERS = {name: door for name, door in OTHERS.items() if is_served(door[0])}


@dataclass
class World:
    service: Service
    key: str
    models: ScriptedServer

    @property
    def router(self):
        return self.service.router

    def post(self, door, headers=(), *, client=None, question=None):
        """Returns (status or that of the error in a reply, JSON of the question's own reply)."""
        path, body = (DOORS | OTHERS)[door]
        has_key = {"authorization", "x-api-key"} & dict(headers).keys()
        sent = [*headers, *(() if has_key else [("authorization", f"Bearer {self.key}")])]
        sent += MCP.items() if path == "/mcp" else ()
        client = client or self.service.http
        question = question or f"Who wrote book {next(numbers)}?"
        reply = client.post(self.service.url + path, json=body(question), headers=sent)
        text = reply.text.partition("data: ")[2] if reply.text.startswith("event: ") else reply.text
        return shown(reply.status_code, json.loads(text))

    def decision(self, reply):
        key = reply.get("decision_id") or reply["id"].removeprefix("chatcmpl-").removeprefix("msg_")
        return self.router.decision(key).decision

    @property
    def decided(self):
        return self.router.status().counters.decided


def shown(status, body):
    """The reply to one question: of a batch its only item, of a tool its structured content."""
    if "items" in body:
        body = body["items"][0]
    elif "result" in body:
        result = body["result"]
        status, body = (400 if result["isError"] else status), result["structuredContent"]
    return (400 if status == 200 and "error" in body and body["error"] else status), body


@pytest.fixture(scope="module")
def models():
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    with ScriptedServer(lambda _sent: Reply(text="Stoker", changes=usage)) as server:
        yield server


def sections(models):
    generator = {"name": "openai", "openai": {"base_url": models.url}, "context_tokens": 4000}
    return {
        "policy": {"name": "uniform"},
        "generators": {name: generator | {"model": name} for name in ("eu", "us")},
        "generator": generator | {"model": "us"},
        "arms": {name: {"class": "model", "generator": name} for name in ("eu", "us")},
        **only_with("embeddings", {"embeddings": {"base_url": models.url}}),
        "context": {
            "region": {"type": "category", "values": ["eu", "us"], "header": "X-Region", "proxy": True},
            "plan": {"type": "category", "hashed": 4, "header": "X-Plan", "map": {"gold,1": "gold"}},
            "level": {"type": "number", "header": "X-Level"},
        },
        "rules": [
            {"name": "residency", "when": {"context.region": "eu"}, "arms": ["eu"]},
            {"name": "helpers", "when": {"agent": "subagent"}, "arms": ["eu"]},
            {"name": "plans", "when": {"context.plan": "gold"}, "arms": ["eu"]},
            {"name": "levels", "when": {"context.level": 3}, "arms": ["eu"]},
        ],
        "server": {"trusted_proxies": ["127.0.0.1/32"]},
    }


@pytest.fixture(scope="module")
def world(serve_module, models):
    service = serve_module(inline=True, **sections(models))
    return World(service, Keyed(service, admin=False).key(scopes={}).text, models)


APPLIED = {
    "the value": [("X-Region", "eu")],
    "a proxy that forwards": [("X-Region", "eu"), ("X-Forwarded-For", "203.0.113.9")],
    "an agent": [*US, ("x-ragbandit-agent", "sub-7")],
    "an agent of Claude Code": [*US, ("x-claude-code-agent-id", "sub-7")],
    "an agent among two": [*US, ("x-ragbandit-agent", ""), ("x-ragbandit-agent", "sub-7")],
    "a mapped value": [*US, ("X-Plan", "gold,1")],
    "a number": [*US, ("X-Level", "3.0")],
}


@pytest.mark.parametrize("door", DOORS)
def test_a_rule_holds_at_every_door(world, door):
    """A rule on a header or on the agent leaves the same arms, whatever the interface."""
    for name, headers in APPLIED.items():
        status, reply = world.post(door, headers)
        assert status == 200, (name, reply)
        decision = world.decision(reply)
        assert (decision.arms, decision.arm) == (("eu",), "eu"), name
    assert set(world.decision(world.post(door, US)[1]).arms) == {"eu", "us"}


REFUSED = {
    "two values": ("X-Region", [("X-Region", "us"), ("X-Region", "eu")]),
    "two that are equal": ("X-Region", [("X-Region", "eu"), ("X-Region", "eu")]),
    "an empty one and another": ("X-Region", [("X-Region", ""), ("X-Region", "eu")]),
    "joined by a proxy": ("X-Region", [("X-Region", "eu, eu")]),
    "another letter case": ("X-Region", [("X-Region", "EU")]),
    "an unknown value": ("X-Region", [("X-Region", "moon")]),
    "a joined text": ("X-Plan", [*US, ("X-Plan", "free, gold")]),
    "a long text": ("X-Plan", [*US, ("X-Plan", "x" * 600)]),
    "no number": ("X-Level", [*US, ("X-Level", "three")]),
    "not a number": ("X-Level", [*US, ("X-Level", "nan")]),
    "two numbers": ("X-Level", [*US, ("X-Level", "3"), ("X-Level", "4")]),
    "another preview": ("x-ragbandit-preview", [*US, ("x-ragbandit-preview", "yes")]),
    "two previews": ("x-ragbandit-preview", [*US, ("x-ragbandit-preview", "0"), ("x-ragbandit-preview", "true")]),
}


@pytest.mark.parametrize("door", [*DOORS, *OTHERS])
def test_what_leaves_a_rule_open_is_refused_at_every_door(world, door):
    """A header that a rule reads, doubled, joined or unknown, is a 400 that names it, and so is another preview."""
    before, asked = world.decided, len(world.models.requests)
    for name, (header, headers) in REFUSED.items():
        status, reply = world.post(door, headers)
        assert status == 400, (name, reply)
        assert header in json.dumps(reply), name
    assert (world.decided, len(world.models.requests)) == (before, asked)


@pytest.fixture(scope="module")
def stranger():
    """A client whose connections do not come from a trusted proxy."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), timeout=30) as client:
        yield client


@pytest.mark.parametrize("door", DOORS)
def test_without_the_proxy_a_rule_cannot_be_decided(world, stranger, door):
    """Without a value from the proxy, the question is refused by name, also if a client sends one."""
    before = world.decided
    for headers, client in (([], None), ([("X-Region", "us")], stranger), ([("X-Region", "")], None)):
        status, reply = world.post(door, headers, client=client)
        assert status == 400, reply
        assert "X-Region" in json.dumps(reply)
    assert world.decided == before


@pytest.mark.parametrize("door", DOORS)
def test_a_preview_at_every_door(world, door):
    """It shows arms and probabilities; nothing is drawn, stored or counted, and no model is asked."""
    before, asked = world.decided, len(world.models.requests)
    for value in ("true", "1", "TRUE"):
        status, reply = world.post(door, [*US, ("x-ragbandit-preview", value)])
        assert status == 200, reply
        assert {entry["arm"]: entry["probability"] for entry in reply["arms"]} == {"eu": 0.5, "us": 0.5}
    status, reply = world.post(door, [("X-Region", "eu"), ("x-ragbandit-preview", "true")])
    assert [entry["arm"] for entry in reply["arms"]] == ["eu"]
    assert (world.decided, len(world.models.requests)) == (before, asked)
    status, reply = world.post(door, [*US, ("x-ragbandit-preview", "false")])
    assert (status, world.decided) == (200, before + 1)


@pytest.mark.parametrize("door", DOORS)
def test_a_session_a_unit_and_a_key_at_every_door(world, door):
    """The headers of session, agent and unit make a task, and both headers of a key let its caller in."""
    session = f"session-{door.replace(' ', '-')}"
    named = [*US, ("x-ragbandit-session-id", session), ("x-ragbandit-unit", "task")]
    first = world.decision(world.post(door, named)[1])
    later = world.decision(world.post(door, named)[1])
    assert (first.query.session, later.turn_of, TaskTurn.of(later.facts).turn) == (session, first.id, 2)
    agent = world.decision(world.post(door, [*named, ("x-ragbandit-agent", "sub")])[1])
    assert (agent.turn_of, agent.query.sent.agent) == (None, "sub")
    status, reply = world.post(door, [*US, ("x-api-key", world.key)])
    assert status == 200, reply
    assert world.decision(reply).query.api_key == first.query.api_key
    for wrong in ([("x-api-key", "rb_no")], [("x-api-key", world.key), ("x-api-key", world.key)]):
        assert world.post(door, [*US, *wrong])[0] == 401
    assert world.post(door, [*US, ("x-ragbandit-unit", "week")])[0] in (400, 422)


@pytest.mark.parametrize("door", DOORS)
def test_the_arm_of_a_header_at_every_door(world, door):
    """The header names the arm of one question; a rule that forbids the arm, and an unknown name, refuse it."""
    for arm in ("eu", "us"):
        decision = world.decision(world.post(door, [*US, ("x-ragbandit-arm", arm)])[1])
        assert (decision.arm, decision.query.arm_by) == (arm, "caller")
    before = world.decided
    status, reply = world.post(door, [("X-Region", "eu"), ("x-ragbandit-arm", "us")])
    assert (status in (400, 403), "residency" in json.dumps(reply)) == (True, True)
    for wrong in ([("x-ragbandit-arm", "mars")], [("x-ragbandit-arm", "eu"), ("x-ragbandit-arm", "us")]):
        assert world.post(door, [*US, *wrong])[0] in (400, 404, 422)
    assert world.decided == before


@pytest.mark.parametrize("door", DOORS)
def test_an_idempotency_key_at_every_door(world, door):
    """The same question with the same key is decided once; another question with it is refused, in a batch by item."""
    headers, before = [*US, ("idempotency-key", f"key-{door.replace(' ', '-')}")], world.decided
    decided = [world.decision(world.post(door, headers, question="Who wrote Emma?")[1]).id for _ in range(2)]
    assert (len(set(decided)), world.decided) == (1, before + 1)
    status, reply = world.post(door, headers, question="Who wrote Ulysses?")
    assert status in (400, 409)
    assert "used for another request" in json.dumps(reply)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/outcomes", {"decision_id": "one", "steps": 1}),
        ("/v1/feedback", {"decision_id": "one", "rating": True}),
        ("/v1/sessions/s/end", {}),
        pytest.param("/v1/embeddings", {"model": "small", "input": "x"}, marks=needs("embeddings")),
    ],
)
def test_what_has_no_preview_does_nothing_in_one(world, path, body):
    """A request that stores or pays, with the header of a preview, is refused instead of being carried out."""
    asked = len(world.models.requests)
    headers = {"authorization": f"Bearer {world.key}", "x-ragbandit-preview": "true", "X-Region": "us"}
    reply = httpx.post(world.service.url + path, json=body, headers=headers)
    assert reply.status_code == 400, reply.text
    assert "x-ragbandit-preview" in reply.text
    assert len(world.models.requests) == asked


ROOT = ("session-id", "root")


@pytest.mark.parametrize(
    ("sent", "session", "agent"),
    [
        ([("x-session-affinity", "ses_1")], "ses_1", None),
        ([("x-session-affinity", "ses_1"), ("x-ragbandit-session-id", "t")], "t", None),
        ([ROOT, ("thread-id", "root")], "root", None),
        ([ROOT, ("thread-id", "a"), ("x-openai-subagent", "collab_spawn")], "root", "a"),
        ([ROOT, ("thread-id", "a")], "root", "a"),
        ([ROOT, ("thread-id", "root"), ("x-openai-subagent", "compact")], "root", None),
        ([ROOT, ("thread-id", "root"), ("x-openai-subagent", "review")], "root", None),
        ([ROOT, ("x-openai-subagent", "compact")], "root", None),
        ([ROOT, ("x-openai-subagent", "review")], "root", "review"),
        ([ROOT, ("thread-id", "a"), ("x-ragbandit-agent", "mine")], "root", "mine"),
        ([ROOT, ("thread-id", "root"), ("x-ragbandit-session-id", "t")], "t", None),
        ([("thread-id", "a"), ("x-codex-parent-thread-id", "root")], "root", "a"),
        ([("thread_id", "a")], "a", None),
    ],
)
def test_sessions_and_agents_of_coding_agents(world, sent, session, agent):
    """An affinity names a conversation. A thread of Codex is an agent if it is not the conversation's own, and the kind
    of an agent names one only without a thread.
    """
    for door in ("chat", "route"):
        query = world.decision(world.post(door, [*US, *sent])[1]).query
        assert (query.session, query.sent.agent) == (session, agent)
