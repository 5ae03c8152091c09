"""Ways of answering a question, by name.

    arms = make_arms({"no_retrieval": {}, "single_step": {"passages": 5}}, capabilities=generator.capabilities)

A key is the name of an arm. Its params say how it is made; the param `class` names the class as "package.module:Class",
which is how your own arm comes in, or names one of ours, which then comes under a second name and with other settings:

    {"wide_step": {"class": "single_step", "passages": 10}}

An installed package brings arms under names of its own, by entry points of the group "ragbandit.strategies".
A class is called with name=<key> and the other params as keywords, and must follow `strategies.base.Strategy`.
"""

from ragbandit.strategies.arms.steps import gather, read
from ragbandit.strategies.base import Completion, Generator, Hit, Need, OutOfBudget, Passage, Prompt, Request, Retriever
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.prompting.prompts import ask, parsed_template
from ragbandit.strategies.registry import ARMS, known_arms, make_arms
from ragbandit.strategies.run import Answer, Run, Strategy
from ragbandit.strategies.runner import run_strategy

__all__ = [
    "ARMS",
    "Answer",
    "Completion",
    "Generator",
    "Hit",
    "Need",
    "OutOfBudget",
    "Passage",
    "PassagePool",
    "Prompt",
    "Request",
    "Retriever",
    "Run",
    "Strategy",
    "ask",
    "gather",
    "known_arms",
    "make_arms",
    "parsed_template",
    "read",
    "run_strategy",
]
