"""Arms: ways of answering a question.

    arms = make_arms({"no_retrieval": {}, "single_step": {"passages": 5}}, capabilities=generator.capabilities)

Each key is the name of an arm, and its value has the params of the arm. The param `class` chooses another class: your
own by its import path, "package.module:Class", or a built-in arm, to use it under a second name with other params:

    {"wide_step": {"class": "single_step", "passages": 10}}

Installed packages add arms by entry points of the group "ragbandit.strategies". A class is called with name=<key> and
the other params as keywords, and must implement `strategies.run.Strategy`.
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
