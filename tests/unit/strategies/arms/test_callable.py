"""Arms that are Python objects: functions, and pipelines as frameworks have them."""

import asyncio
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Budget, DecisionId, Message, Query
from ragbandit.strategies import functions
from ragbandit.strategies.arms.callable import CallableArm
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.without_index import NoRetriever

QUESTION = "Who wrote Dracula?"


class Chain:
    """As a LangChain runnable: `invoke` beside `ainvoke`, which gives a message."""

    async def ainvoke(self, given):
        return SimpleNamespace(content=f"chain: {given}")

    def invoke(self, given):
        raise AssertionError("ainvoke comes first")


class Engine:
    """As a LlamaIndex query engine."""

    def query(self, question):
        return SimpleNamespace(response=f"engine: {question}", source_nodes=[1, 2])


class Pipeline:
    """As a Haystack pipeline: outputs by component."""

    def run(self, given):
        return {"llm": {"replies": [SimpleNamespace(text=f"pipeline: {given}")]}}


def ask(question):
    return f"function: {question}"


async def ask_later(question):
    return {"answer": f"async: {question}"}


def slow(question):
    time.sleep(1.0)
    return question


def hang(question):
    released.wait(20)
    return question


def made():
    return Engine()


def fails():
    raise LookupError("no index")


def told(messages):
    return " | ".join(f"{role}: {text}" for role, text in messages)


def empty(question):
    return ""


def fails_if_asked(question):
    raise AssertionError(question)


released = threading.Event()
chain, pipeline, number, no_text = Chain(), Pipeline(), 7, (lambda _question: 7)


@pytest.fixture(autouse=True)
def my_rag(monkeypatch):
    """This file as a module in the folder of a configuration."""
    monkeypatch.setitem(sys.modules, "my_rag", sys.modules[__name__])


def outcome_of(name, *, budget=None, messages=(), **params):
    arms = make_arms({"mine": {"class": "callable", "object": name, **params}}, capabilities=frozenset())
    said = tuple(Message(role="user", text=text) for text in messages)
    query = Query(id=DecisionId("d1"), text=QUESTION, messages=said)
    parts = {"retriever": NoRetriever(), "generator": ScriptedGenerator({"": "unused"})}
    return asyncio.run(run_strategy(arms["mine"], query=query, budget=budget or Budget(), **parts))


@pytest.mark.parametrize(
    ("name", "params", "answer"),
    [
        ("chain", {}, "chain: {'question': 'Who wrote Dracula?'}"),
        ("chain", {"input": "text"}, "chain: Who wrote Dracula?"),
        ("made", {}, "engine: Who wrote Dracula?"),
        ("pipeline", {}, "pipeline: Who wrote Dracula?"),
        ("ask", {}, "function: Who wrote Dracula?"),
        ("ask_later", {}, "async: Who wrote Dracula?"),
        ("told", {"input": "messages"}, "user: Hello | user: Who wrote Dracula?"),
    ],
)
def test_what_answers(name, params, answer):
    """Functions, waiting or not, and objects by their method, are given the input that they take; one step each."""
    outcome = outcome_of(f"my_rag:{name}", messages=["Hello"], **params)
    assert (outcome.status, outcome.answer, outcome.steps) == ("answered", answer, 1)
    assert outcome.made_by["params"]["object"] == f"my_rag:{name}"


def test_passages_and_the_seconds_of_the_budget():
    """Nodes that an output names are passages shown; a function that waits is left behind at the deadline."""
    assert outcome_of("my_rag:made").cost.passages == 2
    late = outcome_of("my_rag:slow", budget=Budget(seconds=0.1))
    assert (late.status, late.stop_reason) == ("exhausted", "budget_seconds")


@pytest.fixture
def hanging():
    """Functions hang during the test."""
    released.clear()
    yield
    released.set()


def asked(arms, *groups):
    """The outcomes of groups of arms, asked one group after the other on one loop; a group is (seconds, names)."""

    async def ask_all():
        query, parts = Query(id=DecisionId("d1"), text=QUESTION), {"generator": ScriptedGenerator({"": "unused"})}
        parts |= {"retriever": NoRetriever()}
        outcomes = []
        for seconds, names in groups:
            budget = Budget(seconds=seconds)
            runs = (run_strategy(arms[name], query=query, budget=budget, **parts) for name in names)
            outcomes += await asyncio.gather(*runs)
        return outcomes

    return asyncio.run(ask_all())


def test_functions_that_hang_hold_up_nobody(hanging, monkeypatch):
    """Many hung calls of one arm hold up neither another arm's function nor the end of the event loop; above a limit of
    hung calls the arm fails at once, until they have returned.
    """
    monkeypatch.setattr(functions, "MOST_HUNG", 40)
    objects = {"hung": "my_rag:hang", "good": "my_rag:ask"}
    arms = make_arms(
        {name: {"class": "callable", "object": one} for name, one in objects.items()}, capabilities=frozenset()
    )
    outcomes = asked(arms, (1.0, ["hung"] * 40), (20.0, ["good", "hung"]))
    assert not released.is_set()
    assert [each.stop_reason for each in outcomes] == [*["budget_seconds"] * 40, "answered", "error"]
    assert "40 calls of the function of the arm hung have not returned" in outcomes[-1].error
    threads = [each for each in threading.enumerate() if each.name == "arm hung"]
    released.set()
    for thread in threads:
        thread.join(20)
    assert asked(arms, (20.0, ["hung"]))[0].stop_reason == "answered"


@pytest.mark.parametrize("error", [StopIteration("x"), KeyboardInterrupt(), SystemExit(2)])
def test_whatever_a_function_raises_is_its_failure(error, monkeypatch):
    """Exceptions that no Future can hold, or that would end a process, fail the question."""

    def raises(question):
        raise error

    monkeypatch.setattr(sys.modules["my_rag"], "raises", raises, raising=False)
    outcome = outcome_of("my_rag:raises", budget=Budget(seconds=10.0))
    assert (outcome.status, outcome.stop_reason) == ("failed", "error")
    assert type(error).__name__ in outcome.error


def test_an_empty_text_and_no_round():
    """An empty text is an empty answer; without a round in the budget the object is not asked."""
    assert CallableArm.__name__ == "CallableArm"
    empty = outcome_of("my_rag:empty")
    assert (empty.status, empty.stop_reason) == ("answered", "empty_answer")
    assert outcome_of("my_rag:ask").stop_reason == "answered"
    spent = outcome_of("my_rag:fails_if_asked", budget=Budget(rounds=0))
    assert (spent.answer, spent.stop_reason) == ("", "budget_rounds")


def test_an_output_without_text_fails():
    """It is a failed outcome that names the type."""
    outcome = outcome_of("my_rag:no_text")
    assert outcome.status == "failed"
    assert "int without text" in outcome.error


@pytest.mark.parametrize(
    "name", ["", "my_rag:nothing", "my_rag:number", "my_rag", "no_such:x", "my_rag:fails", "my_rag:Engine"]
)
def test_what_cannot_be_asked(name):
    """It is a ConfigError of the setting, before any question."""
    with pytest.raises(ConfigError) as caught:
        outcome_of(name)
    assert caught.value.field == "arms.mine.object"
