"""LangGraph: a node that goes to the arm that the service chooses, and nodes that report their outcomes.

    graph.add_node("route", choose(client, arms=["fast", "deep"]))
    graph.add_node("fast", reported(client, ask_fast))
    graph.add_node("deep", reported(client, ask_deep))

The names of these nodes are the arms. The state needs the keys `question`, `decision_id` and `arm`; `choose` sets the
last two. Needs the extra `langgraph`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from langgraph.types import Command

from ragbandit.client import Client
from ragbandit.client.arms import ReportedRun
from ragbandit.shared.types import DecisionUnit

State: TypeAlias = Any
Node: TypeAlias = Callable[[State], Any]


def choose(
    client: Client,
    *,
    arms: Sequence[str],
    question_of: Callable[[State], str] = lambda state: str(state["question"]),
    context_of: Callable[[State], Mapping[str, object]] | None = None,
    session_of: Callable[[State], str | None] | None = None,
    unit: DecisionUnit | None = None,
) -> Callable[[State], "Command[Any]"]:
    """Make a node that goes to the arm that the service chooses, and sets `decision_id` and `arm`.

    question_of, context_of, session_of: extract the question, its context and the id of its conversation from the state
    unit: "task" if all questions of a conversation get the arm of the first one; by default the service decides
    """

    def route(state: State) -> Command[Any]:
        context = None if context_of is None else dict(context_of(state))
        session = None if session_of is None else session_of(state)
        reply = client.route(question_of(state), arms=list(arms), context=context, session_id=session, unit=unit)
        return Command(goto=reply["arm"], update={"decision_id": reply["decision_id"], "arm": reply["arm"]})

    # LangGraph reads the possible next nodes from the annotation of the returned value.
    route.__annotations__["return"] = Command[Literal[tuple(arms)]]
    return route


def reported(
    client: Client,
    node: Node,
    *,
    outcome_of: Callable[[Any], Mapping[str, object]] = lambda update: {"answer": update["answer"]},
) -> Node:
    """Wrap a node so that it reports an outcome for the state's `decision_id`. After an error the outcome is failed.

    outcome_of: converts the node's return value to fields of the outcome, see `Client.arms`
    """

    @functools.wraps(node)
    def run_node(state: State) -> Any:
        with ReportedRun(client, state["decision_id"], outcome_of=outcome_of) as run:
            run.value = node(state)
        return run.value

    @functools.wraps(node)
    async def await_node(state: State) -> Any:
        async with ReportedRun(client, state["decision_id"], outcome_of=outcome_of) as run:
            run.value = await node(state)
        return run.value

    return await_node if inspect.iscoroutinefunction(node) else run_node
