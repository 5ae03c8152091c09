"""The only arm of a configuration file, asked as a worker asks it."""

import asyncio

from ragbandit.router.config.loading import load
from ragbandit.shared.types import Budget, DecisionId, Query
from ragbandit.strategies.outcome import run_strategy
from ragbandit.workers.setup.generators import worker_arms
from ragbandit.workers.setup.loading import ArmLoader, parts_of


def answered(config, question, **budget):
    """The outcome of the arm."""
    settings = load(config, environ={}).settings

    async def answer():
        (arm,) = (arms := ArmLoader(settings).load(worker_arms(settings))).values()
        query = Query(id=DecisionId("d"), text=question)
        parts = {"retriever": arm.retriever, "generator": arm.generator}
        try:
            return await run_strategy(arm.strategy, query=query, budget=Budget(**budget), **parts)
        finally:
            for part in parts_of(arms.values()):
                await part.close()

    return asyncio.run(answer())
