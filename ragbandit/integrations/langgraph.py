"""LangGraph: a node that goes to the arm that the service chooses, and nodes that report how they went.

    graph.add_node("route", choose(client, arms=["fast", "deep"]))
    graph.add_node("fast", reported(client, ask_fast))
    graph.add_node("deep", reported(client, ask_deep))

The arms are nodes of these names. The state has a key `question`, and keys `decision_id` and `arm` that the node sets.
Needs the extra `langgraph`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from langgraph.types import Command

from ragbandit.client import Client
from ragbandit.client.arms import ReportedRun

State: TypeAlias = Any
Node: TypeAlias = Callable[[State], Any]


def choose(
    client: Client,
    *,
    arms: Sequence[str],
    question_of: Callable[[State], str] = lambda state: str(state["question"]),
    context_of: Callable[[State], Mapping[str, object]] | None = None,
) -> Callable[[State], "Command[Any]"]:
    """A node that goes to the one of these nodes that the service chooses, and sets `decision_id` and `arm`."""

    def route(state: State) -> Command[Any]:
        context = None if context_of is None else dict(context_of(state))
        reply = client.route(question_of(state), arms=list(arms), context=context)
        return Command(goto=reply["arm"], update={"decision_id": reply["decision_id"], "arm": reply["arm"]})

    # The graph reads from the annotation where the node may go.
    route.__annotations__["return"] = Command[Literal[tuple(arms)]]
    return route


def reported(
    client: Client,
    node: Node,
    *,
    outcome_of: Callable[[Any], Mapping[str, object]] = lambda update: {"answer": update["answer"]},
) -> Node:
    """The node, which then reports its outcome under the state's `decision_id`; what it raises is a failed outcome.

    node: a function of the state, or an `async def`. outcome_of: from what the node returned, see `Client.arms`.
    """

    @functools.wraps(node)
    def waiting(state: State) -> Any:
        with ReportedRun(client, state["decision_id"], outcome_of=outcome_of) as run:
            run.value = node(state)
        return run.value

    @functools.wraps(node)
    async def awaited(state: State) -> Any:
        async with ReportedRun(client, state["decision_id"], outcome_of=outcome_of) as run:
            run.value = await node(state)
        return run.value

    return awaited if inspect.iscoroutinefunction(node) else waiting
