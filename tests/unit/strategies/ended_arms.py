"""Arms for tests, and the outcomes with which they end."""

import asyncio
from types import MappingProxyType

from ragbandit.shared.types import Budget, DecisionId, Query
from ragbandit.strategies.base import Prompt
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.retrievers.without_index import MemoryRetriever

PROMPT = Prompt(instructions="", body="b")


class Arm:
    """Two rounds, one search and one call, then whatever the test wants."""

    name = "arm"
    needs = frozenset()
    params = MappingProxyType({})

    def __init__(self, end):
        self._end = end

    async def answer(self, question, *, run):
        run.begin_round(cap=2)
        await run.search(question, k=1)
        run.begin_round(cap=2)
        await run.complete(Prompt(instructions="", body="two words"), purpose="p", max_tokens=3)
        run.draft = "draft"
        return await self._end()


async def outcome_of(arm, *, retriever=None, generator=None, query=None, stop=None, **budget):
    return await run_strategy(
        arm,
        query=query or Query(id=DecisionId("d7"), text="q"),
        budget=Budget(**budget),
        retriever=retriever or MemoryRetriever([]),
        generator=generator or ScriptedGenerator({"": "one"}),
        stop=stop,
    )


def ended(arm, **parts):
    """The outcome of an arm, waited for."""
    return asyncio.run(outcome_of(arm, **parts))


def run(end, **budget):
    return ended(Arm(end), **budget)


class Own(Arm):
    """Whatever the test wants, with the run at hand."""

    async def answer(self, question, *, run):
        return await self._end(run)
