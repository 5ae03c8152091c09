"""Every arm that asks a retriever and a generator of ours, run at once."""

import asyncio

from ragbandit.strategies.retrievers.reranking import MemoryRetriever
from ragbandit.testing.arms import PASSAGES, generator, outcome_of
from tests.support.arms.arm_runs import made
from tests.unit.strategies.arms.test_arm_contract import CASES

#: the first settings of every arm that asks a retriever and a generator of ours
ARMS_HERE = dict(reversed(CASES))


def outcomes(names, *, budget=None, retriever=None, generator_=None):
    """The outcome of each, by name; all arms at once, as they run in a worker, and what they shared is closed."""

    async def together():
        asked = generator_ or generator()
        found = retriever or MemoryRetriever(PASSAGES)
        try:
            runs = [
                outcome_of(made(name, **ARMS_HERE[name]), budget=budget, retriever=found, generator_=asked)
                for name in names
            ]
            return dict(zip(names, await asyncio.gather(*runs), strict=True))
        finally:
            await asked.close()
            await found.close()

    return asyncio.run(asyncio.wait_for(together(), 30))
