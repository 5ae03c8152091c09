"""rq_rag with a scripted model: the single path, the tree, the choice of an answer, and every way it ends."""

from typing import get_args

import pytest

from ragbandit.additions.research_arms.rq_rag import RqRag
from ragbandit.strategies.base import Need
from ragbandit.strategies.generators.parts import Token
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from tests.support.arms.arm_runs import branches, outcome_of, purposes, queries


def end_of(outcome):
    return outcome.answer, outcome.stop_reason, outcome.steps


def tree_script(*, answers):
    """A model whose queries differ everywhere, and which answers from the given list."""
    left = iter(answers)
    counted = iter(range(1000))

    def said(prompt):
        return next(left) if prompt.prefix == "Answer:" else f"Jaws query {next(counted)}"

    return said


def test_rq_rag_rewrites_searches_and_answers():
    """One refinement: the rewritten query is searched, and the reader answers from what it found."""
    generator = ScriptedGenerator(["rewrite", '"Spielberg Cincinnati"\nmore', "Ohio"])
    outcome = outcome_of(RqRag(), generator)
    assert purposes(outcome) == ["decide", "rewrite", "read"]
    assert queries(outcome) == ["Spielberg Cincinnati"]
    assert end_of(outcome) == ("Ohio", "max_depth", 1)
    assert "Spielberg came from Cincinnati." in generator.prompts[2].body


@pytest.mark.parametrize(
    ("arm", "script", "budget", "ended", "searched", "unreadable"),
    [
        (RqRag(depth=3), ["Answer.", "Ohio"], {}, ("Ohio", "answer_decided", 0), [], []),
        (RqRag(), ["answer", " "], {}, ("", "empty_answer", 0), [], []),
        (
            RqRag(tree=True),
            [""] * 7,
            {},
            ("", "empty_answer", 3),
            ["the maker of Jaws from?"] * 3,
            ["no query in: "] * 3,
        ),
        (
            RqRag(depth=3),
            ["rewrite", "Jaws", "rewrite", "Ohio"],
            {"rounds": 1},
            ("Ohio", "budget_rounds", 1),
            ["Jaws"],
            [],
        ),
        (RqRag(tree=True), ["Ohio"], {"rounds": 0}, ("Ohio", "budget_rounds", 0), [], []),
        (
            RqRag(),
            ["hm", "  ", "Ohio"],
            {},
            ("Ohio", "max_depth", 1),
            ["the maker of Jaws from?"],
            ["no action in: hm", "no query in:   "],
        ),
    ],
)
def test_rq_rag_ends_by_every_rule(arm, script, budget, ended, searched, unreadable):
    """A path and a tree end with their reasons; what cannot be read is a rewrite, or the question, and is counted."""
    outcome = outcome_of(arm, script, **budget)
    assert end_of(outcome) == ended
    assert queries(outcome) == searched
    assert branches(outcome, "parse_failed") == unreadable


@pytest.mark.parametrize(("depth", "answers", "rounds"), [(1, 4, 3), (2, 13, 12), (3, 40, 39)])
def test_rq_rag_expands_the_whole_tree(depth, answers, rounds):
    """The tree has the paper's size: 13 answers and 12 refinements at depth 2, 40 and 39 at depth 3."""
    outcome = outcome_of(RqRag(tree=True, depth=depth), tree_script(answers=["Ohio"] * answers))
    said = purposes(outcome)
    assert (said.count("read"), len(said) - said.count("read")) == (answers, rounds)
    assert (outcome.cost.retriever_calls, outcome.steps) == (rounds, rounds)
    assert (outcome.answer, outcome.stop_reason) == ("Ohio", "max_depth")


def test_rq_rag_takes_the_answer_the_model_was_surest_of():
    """With choose=confidence the highest mean log-probability wins over the majority."""
    said = [
        Scripted(text=text, details={"logprobs": (Token(text=text, logprob=logprob),)})
        for text, logprob in (("Ohio", -2.0), ("Toledo", -0.5), ("Ohio", -1.0), ("Ohio", -3.0))
    ]
    generator = ScriptedGenerator(tree_script(answers=said), capabilities=get_args(Need))
    outcome = outcome_of(RqRag(tree=True, choose="confidence"), generator)
    assert outcome.answer == "Toledo"
    assert {request.want for request in generator.requests if request.prompt.prefix == "Answer:"} == {
        frozenset({"logprobs"})
    }
