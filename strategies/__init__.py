"""Arms: ways of answering a question.

    arms = make_arms({"no_retrieval": {}, "single_step": {"passages": 5}}, capabilities=generator.capabilities)

Arms of your own: docs/extend.md.
"""

from ragbandit.strategies.arm_parts.steps import gather, read
from ragbandit.strategies.base import Completion, Generator, Hit, Need, Passage, Prompt, Request, Retriever, book_cost
from ragbandit.strategies.failures import OutOfBudget
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.prompting.prompts import ask, parsed_template
from ragbandit.strategies.registry import built_in_arms, known_arms, make_arms
from ragbandit.strategies.run import Answer, Run, Strategy

__all__ = [
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
    "book_cost",
    "built_in_arms",
    "gather",
    "known_arms",
    "make_arms",
    "parsed_template",
    "read",
    "run_strategy",
]
