"""The built-in arms, how their tests run one, and what its outcome contains."""

import asyncio
from typing import get_args

from ragbandit.shared.types import Branch, Budget, DecisionId, Generated, Query, Retrieved
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.base import Generator, Need, Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.registry import built_in_arms, make_arms
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.strategies.run import Run
from ragbandit.testing.arms import PASSAGES, generator as echo_generator, outcome_of as asked
from ragbandit.testing.params import other_params, params_class

JAWS = Passage(id="jaws", title="Jaws", text="Jaws was made by Spielberg.")
MAN = Passage(id="man", title="Spielberg", text="Spielberg came from Cincinnati.")
TOWN = Passage(id="town", title="Cincinnati", text="Cincinnati lies in Ohio.")
QUESTION = "Where is the maker of Jaws from?"

ARMS = built_in_arms()
#: the arms that use the retriever and the generator of the run
ARMS_HERE = [name for name, kind in ARMS.items() if issubclass(kind, PromptedArm)]
#: the arms whose answer a reader writes freely
CHAT = [name for name, kind in ARMS.items() if "chat" in getattr(kind, "presets", ())]


def made(name, **params):
    """The arm of this name with these params, where the generator offers everything."""
    return make_arms({name: params}, capabilities=frozenset(get_args(Need)))[name]


def example(name):
    """Params of an arm, none at its default, as its class declares them or its types determine them."""
    return other_params(params_class(ARMS[name]), example=getattr(ARMS[name], "example", {}))


def outcomes(names=ARMS_HERE, *, budget=None, retriever=None, generator=None):
    """Name -> outcome of each arm with its example params. All arms run at once, as in a worker."""

    async def together():
        model = generator or echo_generator()
        index = retriever or MemoryRetriever(PASSAGES)
        try:
            arms = [made(name, **example(name)) for name in names]
            runs = [asked(arm, budget=budget, retriever=index, generator_=model) for arm in arms]
            return dict(zip(names, await asyncio.gather(*runs), strict=True))
        finally:
            await model.close()
            await index.close()

    return asyncio.run(asyncio.wait_for(together(), 30))


def outcome_of(arm, answers, *, question=QUESTION, corpus=(JAWS, MAN, TOWN), **budget):
    query = Query(id=DecisionId("d"), text=question)
    generator = answers if isinstance(answers, Generator) else ScriptedGenerator(answers)
    parts = {"retriever": MemoryRetriever(corpus), "generator": generator}
    return asyncio.run(run_strategy(arm, query=query, budget=Budget(**budget), **parts))


def run_of(generator=None, **budget):
    asked, model = Query(id=DecisionId("d"), text=QUESTION), generator or ScriptedGenerator(())
    return Run(query=asked, retriever=MemoryRetriever(()), generator=model, budget=Budget(**budget))


def queries(outcome):
    return [event.query for event in outcome.trace if isinstance(event, Retrieved)]


def branches(outcome, rule):
    return [event.value for event in outcome.trace if isinstance(event, Branch) and event.rule == rule]


def purposes(outcome):
    return [event.purpose for event in outcome.trace if isinstance(event, Generated)]
