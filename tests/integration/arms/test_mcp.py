"""The arm behind an MCP server, against a real one: over HTTP, and as a program on its pipes."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Budget, CallFailed, DecisionId, Query
from ragbandit.strategies.arms import mcp
from ragbandit.strategies.arms.mcp import Mcp
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.retrievers.memory import MemoryRetriever
from ragbandit.strategies.runner import run_strategy
from tests.support.cases import every_case
from tests.support.servers.http_service import Service
from tests.support.servers.mcp_server import HttpServer

ROOT = Path(__file__).parents[3]
PROGRAM = {
    "command": sys.executable,
    "args": [str(ROOT / "tests" / "support" / "servers" / "mcp_server.py")],
    "tool": "ask",
}
FIELDS = {
    "answer": "result.text",
    "steps": "result.tries",
    "cost.dollars": "result.usage.usd",
    "cost.completion_tokens": "result.usage.out",
    "sources": "documents",
}


async def outcome(arm, question="Who wrote Dracula?", *, budget=None):
    query = Query(id=DecisionId("d1"), text=question)
    parts = {"retriever": MemoryRetriever([]), "generator": ScriptedGenerator([])}
    return await run_strategy(arm, query=query, budget=budget or Budget(), **parts)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(mcp, "_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def server():
    with HttpServer() as running:
        yield running


def test_a_tool_over_http(server, monkeypatch):
    """Its text is the answer; by `fields` its cost, steps and sources count; key, headers and arguments are sent."""
    monkeypatch.setenv("LIBRARY_KEY", "shelf-key-12345")
    plain = Mcp(name="mine", url=server.url, tool="ask", api_key_env="LIBRARY_KEY")
    rich = Mcp(name="mine", url=server.url, tool="ask", argument="question", arguments={"shelf": "B"}, fields=FIELDS)

    async def both():
        return await asyncio.gather(outcome(plain), outcome(rich))

    said, told = asyncio.run(both())
    assert (said.status, said.answer, said.steps) == ("answered", "Who wrote Dracula?: Stoker", 0)
    assert (told.answer, told.steps, told.cost.dollars, told.cost.completion_tokens) == ("Bram Stoker", 2, 0.02, 7)
    (source,) = told.sources
    assert (source.text, source.url, source.score) == ("Dracula is by Bram Stoker.", "https://books.example/1", 2.5)
    assert sorted(server.asked[-2:]) == ["Who wrote Dracula?|B", "Who wrote Dracula?|all"]
    assert set(server.keys) == {"Bearer shelf-key-12345"}
    assert "shelf-key" not in repr((said, told, plain.params))


def test_failures_are_outcomes(server, monkeypatch):
    """What the tool or the server refuses fails at once, in words that name it, without the key."""
    monkeypatch.setenv("LIBRARY_KEY", "shelf-key-12345")
    cases = [
        ({}, "fail", "the tool failed: no [key]"),
        ({"tool": "aks"}, "x", "it has no tool 'aks' (did you mean ask? it has ask, compare)"),
        ({"tool": "aks", "argument": "q"}, "x", "aks"),
        ({"tool": "compare"}, "x", "its tool compare requires left, right: set the arm's param argument"),
        ({"tool": "compare", "argument": "left"}, "x", "right"),
        ({"fields": {"answer": "result.txt"}}, "x", "the reply's answer"),
        ({"fields": {"cost": "documents"}}, "x", "the reply's cost"),
    ]
    with every_case() as case:
        for params, question, words in cases:
            with case(params, question):
                made = Mcp(**{"name": "mine", "url": server.url, "tool": "ask", "api_key_env": "LIBRARY_KEY"} | params)
                failed = asyncio.run(outcome(made, question))
                assert (failed.status, failed.trace) == ("failed", ())
                assert words in failed.error
                assert "shelf-key" not in failed.error


def test_a_key_that_is_not_valid_is_refused_at_once(settings, monkeypatch):
    """Behind another RagBandit's /mcp: its words are in the error, and no other try is made with the same key."""
    monkeypatch.setenv("LIBRARY_KEY", "rb_0000000000_" + "x" * 43)
    service = Service(settings())
    try:
        KeyStore(service.router.database).create(name="a", role="app", now=time.time(), actor="cli:test")
        service.app.state.gate.ring.known = None
        arm = Mcp(name="mine", url=f"{service.url}/mcp", tool="route", api_key_env="LIBRARY_KEY")
        refused = asyncio.run(outcome(arm))
    finally:
        service.close()
    assert (refused.status, refused.trace) == ("failed", ())
    assert "the call was refused: this API key is not valid" in refused.error


def test_a_cap_that_the_reply_overran_ends_it(server):
    """A reply that says it spent more than the budget allows is exhausted, its answer kept."""
    arm = Mcp(name="mine", url=server.url, tool="ask", fields=FIELDS)
    over = asyncio.run(outcome(arm, budget=Budget(rounds=1)))
    assert (over.status, over.stop_reason, over.answer) == ("exhausted", "budget_rounds", "Bram Stoker")


def test_time_is_limited(server):
    """A tool that hangs is given up: as a failure after `timeout_s`, as exhausted where the budget ends first."""
    arm = Mcp(name="mine", url=server.url, tool="ask", timeout_s=0.3, retries=1)
    slow = asyncio.run(outcome(arm, "hang"))
    assert (slow.status, len(slow.trace)) == ("failed", 2)
    assert "it took longer than 0.3 s (raise arms.mine.timeout_s)" in slow.error
    cut = asyncio.run(outcome(Mcp(name="mine", url=server.url, tool="ask"), "hang", budget=Budget(seconds=0.3)))
    assert (cut.status, cut.stop_reason) == ("exhausted", "budget_seconds")


def test_a_server_that_comes_back_is_asked_again():
    """While it is away tries fail and are in the trace; the same arm answers before and after, also with sessions."""

    async def story():
        arm = Mcp(name="mine", url=server.url, tool="ask", retries=1)
        with server:
            before = await outcome(arm, "a")
        away = await outcome(arm, "b")
        with server:
            return before, away, await outcome(arm, "c")

    server = HttpServer(stateless=False)
    before, away, after = asyncio.run(story())
    assert (before.status, after.status, after.answer) == ("answered", "answered", "c: Stoker")
    assert (away.status, len(away.trace)) == ("failed", 2)
    assert f"{server.url}: it cannot be asked: " in away.error
    assert all(isinstance(event, CallFailed) for event in (*away.trace, *after.trace))


def test_a_program_on_its_pipes(monkeypatch):
    """It is started once, gets its key by the environment, and is started again when it dies; none is left behind."""
    monkeypatch.setenv("LIBRARY_KEY", "shelf-key-12345")

    async def story():
        arm = Mcp(name="mine", **PROGRAM, api_key_env="LIBRARY_KEY", retries=0)
        first = await outcome(arm, "a")
        holder = arm._server
        second, refused = await asyncio.gather(outcome(arm, "b"), outcome(arm, "fail"))
        assert arm._server is holder
        return first, second, refused, await outcome(arm, "die"), await outcome(arm, "c")

    first, second, refused, died, third = asyncio.run(story())
    assert [each.answer for each in (first, second, third)] == ["a: Stoker", "b: Stoker", "c: Stoker"]
    assert "the tool failed: no [key]" in refused.error
    assert (died.status, len(died.trace)) == ("failed", 1)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"tool": "ask"}, "arms.mine.url"),
        ({"tool": "ask", "url": "http://h/mcp", "command": "x"}, "arms.mine.url"),
        ({"tool": "ask", "url": "h/mcp"}, "arms.mine.url"),
        ({"url": "http://h/mcp"}, "arms.mine.tool"),
        ({"tool": "ask", "url": "http://h/mcp", "api_key_env": "NO_SUCH"}, "arms.mine.api_key_env"),
        ({"tool": "ask", "url": "http://h/mcp", "fields": {"cost.dollar": "x"}}, "arms.mine.fields"),
    ],
)
def test_a_wrong_configuration_names_the_field(params, field):
    with pytest.raises(ConfigError) as caught:
        Mcp(name="mine", **params)
    assert caught.value.field == field
    assert caught.value.remedy
