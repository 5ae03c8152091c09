"""Tasks of coding agents: the requests that Claude Code and Codex send for one task are one decision."""

import itertools
import json
from dataclasses import replace

import httpx
import pytest
from backports import zstd
from sqlalchemy import select

from ragbandit.router.storage.sql.tables import updates
from ragbandit.shared.types import TaskTurn
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support import anthropic_events, command
from tests.support.additions import needs, task_units
from tests.support.coding_agents import (
    CLAUDE_AGENT,
    CLAUDE_HEADERS,
    CODEX_AGENT,
    CODEX_HEADERS,
    SESSION,
    claude_request,
    claude_result,
    claude_title,
    codex_message,
    codex_request,
)

#: word by which an agent's message tells the scripted model to answer without a call
LAST = "Conclude."
#: dollars of each reply of the scripted models: 100 tokens of a prompt at 100 dollars per million
DOLLARS = 0.01
ROUTED = ("small", "large")
numbers = itertools.count(1)


def reply_of(sent):
    """A call of the first tool, or a text if the newest messages ask for one. Each reply costs DOLLARS."""
    usage = {"usage": {"prompt_tokens": 100, "completion_tokens": 10}}
    newest = itertools.takewhile(lambda message: message["role"] != "assistant", reversed(sent["messages"]))
    if not sent.get("tools") or LAST in json.dumps([*newest]):
        return Reply(text="It is done.", changes=usage)
    function = {"name": sent["tools"][0]["function"]["name"], "arguments": '{"command": "ls"}'}
    call = {"id": f"call_{next(numbers)}", "type": "function", "function": function}
    return Reply(message={"tool_calls": [call]}, finish="tool_calls", changes=usage)


def model(name, server):
    prices = {"input": 100.0, "output": 0.0}
    able = {"supports": ["tools", "json", "images"], "context_tokens": 200_000, "token_prices": prices}
    return {"name": "openai", "model": name, "openai": {"base_url": server.url}, **able}


@pytest.fixture(scope="module")
def server():
    with ScriptedServer(reply_of) as running:
        yield running


@pytest.fixture
def gateway(server, serve):
    """A service with two models behind `auto`, and a small one for titles, whose chats and messages are tasks."""
    return serve(
        inline=True,
        generators={name: model(name, server) for name in (*ROUTED, "title")},
        generator=model("small", server),
        arms={name: {"class": "model", "generator": name} for name in (*ROUTED, "title")},
        server={"model_aliases": {"claude-haiku-*": "arm/title", "claude-*": "auto"}},
        conversation={"units": task_units(), "rewrite": {"by": "off"}},
        reward={"cost": {"dollars": 1.0}, "weight": 0.5},
    )


class ClaudeCode:
    """One agent of Claude Code, with the history that it sends. agent: id of a sub-agent; None for the main one."""

    def __init__(self, service, *, agent=None):
        self.service, self.messages, self.made, self.call = service, [], [], None
        self.headers = CLAUDE_HEADERS | ({} if agent is None else {CLAUDE_AGENT: agent})

    def send(self, body):
        """Send a body; returns the message that was streamed."""
        path = f"{self.service.url}/v1/messages?beta=true"
        reply = httpx.post(path, content=json.dumps(body), headers=self.headers, timeout=30)
        assert reply.status_code == 200, reply.text
        lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
        message = anthropic_events.joined([json.loads(line) for line in lines])
        self.made.append(self.service.router.decision(message["id"].removeprefix("msg_")).decision)
        return message

    def step(self, text):
        """Send the result of the last call, or the user's text if there is none; keep the answer."""
        if self.call is None:
            self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
        else:
            self.messages.append(claude_result(self.call, text))
        message = self.send(claude_request(self.messages))
        self.messages.append({"role": "assistant", "content": message["content"]})
        last = message["content"][-1]
        self.call = last if last["type"] == "tool_use" else None

    def compact(self):
        """Ask for a summary, and begin a history of its own with it."""
        self.step(f"Your task is to create a detailed summary of the conversation so far. {LAST}")
        summary = self.messages[-1]["content"][-1]["text"]
        text = f"This session is being continued from a previous conversation. The summary: {summary}"
        self.messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]


class Codex:
    """One agent of Codex. agent: kind of the sub-agent; None for the main one."""

    def __init__(self, service, *, agent=None):
        self.service, self.items, self.made, self.call = service, [], [], None
        self.headers = CODEX_HEADERS | ({} if agent is None else {CODEX_AGENT: agent})

    def step(self, text):
        if self.call is None:
            self.items.append(codex_message(text))
        else:
            self.items.append({"type": "function_call_output", "call_id": self.call["call_id"], "output": text})
        body = zstd.compress(json.dumps(codex_request(self.items)).encode())
        reply = httpx.post(f"{self.service.url}/v1/responses", content=body, headers=self.headers, timeout=30)
        assert reply.status_code == 200, reply.text
        events = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
        assert events[-1]["type"] == "response.completed", events[-1]
        output = events[-1]["response"]["output"]
        self.made.append(self.service.router.decision(events[-1]["response"]["id"]).decision)
        self.items += [{name: value for name, value in item.items() if name != "status"} for item in output]
        self.call = output[-1] if output[-1]["type"] == "function_call" else None

    def compact(self):
        self.step(f"You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary. {LAST}")
        summary = self.items[-1]["content"][0]["text"]
        self.items = [codex_message(f"Another language model started to solve this problem. Its summary: {summary}")]


def worked(agent, *, steps):
    """Let an agent take a user's question, call tools, and answer, in `steps` requests."""
    agent.step("Make the tests pass.")
    for _ in range(steps - 2):
        agent.step("No files found")
    agent.step(f"All tests pass. {LAST}")
    assert agent.call is None


def assert_one_task(decisions):
    """All decisions but the first are turns of it, with its arm."""
    first, *turns = decisions
    assert first.turn_of is None
    assert TaskTurn.of(first.facts).turn == 1
    assert {one.turn_of for one in turns} == {first.id}
    assert {one.arm for one in decisions} == {first.arm}
    assert [TaskTurn.of(one.facts).turn for one in turns] == list(range(2, len(decisions) + 1))


def updates_of(router):
    """The ledger's rows."""
    with router.database.read() as connection:
        return connection.execute(select(updates).order_by(updates.c.seq)).all()


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(ClaudeCode, marks=needs("anthropic")),
        pytest.param(Codex, marks=needs("responses")),
    ],
)
def test_a_task_of_thirty_requests(gateway, server, client):
    """A task with tools, sub-agents, a title and a compaction is one decision of the main agent. Its judgement by the
    session is learned once, with the dollars of all its requests.
    """
    router, before = gateway.router, len(server.requests)
    main = client(gateway)
    if client is ClaudeCode:
        title = ClaudeCode(gateway)
        title.send(claude_title("Make the tests pass."))
        assert (title.made[0].arm, TaskTurn.of(title.made[0].facts)) == ("title", None)
    worked(main, steps=9)
    main.step("Look at the rest.")
    agents = [client(gateway, agent=name) for name in ("a1b2c3", "d4e5f6")]
    for agent in agents:
        worked(agent, steps=4)
    main.step(f"Both agents are done. {LAST}")
    main.compact()
    worked(main, steps=18)
    assert len(main.made) == 30
    for agent in (main, *agents):
        assert_one_task(agent.made)
    counters = router.status().counters
    assert counters.decided == 3 + (client is ClaudeCode)
    assert {one.query.session for one in main.made} == {SESSION}
    assert len(server.requests) - before == 30 + 2 * 4 + (client is ClaudeCode)
    sent = ("feedback", "send", "--session", SESSION, "--label", "solved", "--url", gateway.url, "--json")
    reply = json.loads(command.run(*sent, code=0).stdout)
    assert (reply["decision_id"], reply["ended"]) == (main.made[0].id, 3)
    assert router.learn() == 1
    (update,) = updates_of(router)
    assert (update.decision_id, update.arm, update.quality) == (main.made[0].id, main.made[0].arm, 1.0)
    assert update.cost == pytest.approx(30 * DOLLARS)
    again = router.route(replace(main.made[0].query, id=None, session="another", unit="turn"))
    assert again.scores != main.made[0].scores
    assert router.verify(deep=True).ok
