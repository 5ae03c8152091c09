"""The LangGraph nodes in a real graph: it goes to the chosen arm, keeps the decision's id, reports."""

import asyncio
import uuid
from typing import TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

from ragbandit import Client
from ragbandit.integrations.langgraph import choose, reported

QUESTION = "Who wrote Dracula?"


class State(TypedDict, total=False):
    question: str
    answer: str
    decision_id: str
    arm: str


@pytest.fixture
def client():
    with Client() as opened:
        yield opened


def graph_of(client, **nodes):
    graph = StateGraph(State)
    graph.add_node("route", choose(client, arms=list(nodes)))
    graph.add_edge(START, "route")
    for name, node in nodes.items():
        graph.add_node(name, reported(client, node))
        graph.add_edge(name, END)
    return graph.compile()


def test_a_graph(client):
    """One arm's node runs; the state ends with its answer and the decision's id, under which feedback is taken."""
    ran = []

    def fast(state: State) -> State:
        ran.append("fast")
        return {"answer": "Bram Stoker"}

    def deep(state: State) -> State:
        ran.append("deep")
        return {"answer": "Abraham Stoker"}

    compiled = graph_of(client, fast=fast, deep=deep)
    end = compiled.invoke({"question": QUESTION})
    record = client.decision(end["decision_id"])
    assert ran == [end["arm"]] == [record["arm"]]
    assert record["outcome"]["answer"] == end["answer"]
    assert client.feedback(end["decision_id"], rating=True)["waiting_for"] is None
    drawn = {(edge.source, edge.target) for edge in compiled.get_graph().edges}
    assert {("route", "fast"), ("route", "deep")} <= drawn


def test_an_async_graph(client):
    """Async nodes are awaited and reported; what one raises is a failed outcome."""

    async def fast(state: State) -> State:
        await asyncio.sleep(0)
        return {"answer": "Bram Stoker"}

    async def deep(state: State) -> State:
        raise LookupError("no index")

    end = asyncio.run(graph_of(client, fast=fast).ainvoke({"question": QUESTION}))
    assert client.decision(end["decision_id"])["outcome"]["answer"] == "Bram Stoker"
    failing = graph_of(client, deep=deep)
    decided = []

    async def walk():
        async for update in failing.astream({"question": QUESTION}, stream_mode="updates"):
            decided.extend(node["decision_id"] for node in update.values())

    with pytest.raises(LookupError):
        asyncio.run(walk())
    outcome = client.decision(decided[0])["outcome"]
    assert (outcome["status"], outcome["error"]) == ("failed", "LookupError: no index")


def test_a_thread_is_a_task(client):
    """With the unit task, all questions of a thread go to one node."""
    thread = str(uuid.uuid4())
    route = choose(client, arms=["fast", "deep"], session_of=lambda state: thread, unit="task")
    assert len({route({"question": QUESTION}).goto for _ in range(8)}) == 1
