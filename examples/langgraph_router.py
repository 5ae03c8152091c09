"""LangGraph: a node goes to the arm that the service chooses (pip install '.[langgraph]').

ragbandit up --config examples/bring_your_own_pipelines.yaml
python -m ragbandit.examples.langgraph_router
"""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph

from ragbandit import Client
from ragbandit.integrations.langgraph import choose, reported


class State(TypedDict, total=False):
    question: str
    answer: str
    decision_id: str
    arm: str


def fast(state: State) -> State:  # noqa: ARG001 - a model's place
    return {"answer": "Bram Stoker"}


def deep(state: State) -> State:  # noqa: ARG001
    return {"answer": "Abraham Stoker, in 1897"}


def main() -> None:
    with Client() as client:
        graph = StateGraph(State)
        graph.add_node("route", choose(client, arms=["fast", "deep"]))
        graph.add_node("fast", reported(client, fast))
        graph.add_node("deep", reported(client, deep))
        graph.add_edge(START, "route")
        graph.add_edge("fast", END)
        graph.add_edge("deep", END)
        end = graph.compile().invoke({"question": "Who wrote Dracula?"})
        print(end["arm"], end["answer"])
        client.feedback(end["decision_id"], rating="Stoker" in end["answer"])


if __name__ == "__main__":
    main()
