"""Run an arm as a worker does, in an environment that has a framework and not all of our packages."""

import asyncio

from ragbandit.shared.types import Budget, DecisionId, Message, Query
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.memory import NoRetriever
from ragbandit.strategies.runner import run_strategy

QUESTION = "Who wrote Dracula?"


def outcome_of(kind, *, question=QUESTION, budget=None, messages=(), **params):
    """The outcome of an arm of this class, configured as in config.yaml."""
    (arm,) = make_arms(
        {"mine": {"class": f"ragbandit.strategies.adapters.arms:{kind}", **params}}, capabilities=frozenset()
    ).values()
    query = Query(id=DecisionId("d1"), text=question, messages=tuple(Message(role="user", text=t) for t in messages))
    return asyncio.run(
        run_strategy(
            arm,
            query=query,
            budget=budget or Budget(),
            retriever=NoRetriever(),
            generator=ScriptedGenerator({"": "unused"}),
        )
    )


def searched(retriever, *, query=QUESTION, k=2):
    """What a retriever finds."""
    return asyncio.run(retriever.search(query, k=k))
