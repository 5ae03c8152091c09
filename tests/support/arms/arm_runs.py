"""How the arms' own tests run an arm, and read what it did."""

import asyncio
from typing import get_args

from ragbandit.shared.types import Branch, Budget, DecisionId, Generated, Query, Retrieved
from ragbandit.strategies.base import Generator, Need, Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.reranking import MemoryRetriever
from ragbandit.strategies.run import Run
from ragbandit.strategies.runner import run_strategy

JAWS = Passage(id="jaws", title="Jaws", text="Jaws was made by Spielberg.")
MAN = Passage(id="man", title="Spielberg", text="Spielberg came from Cincinnati.")
TOWN = Passage(id="town", title="Cincinnati", text="Cincinnati lies in Ohio.")
QUESTION = "Where is the maker of Jaws from?"


def made(name, **params):
    """The arm of this name with these params, where the generator offers everything."""
    return make_arms({name: params}, capabilities=frozenset(get_args(Need)))[name]


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
