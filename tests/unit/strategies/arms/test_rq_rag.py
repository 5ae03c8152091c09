"""rq_rag with a scripted model: the single path, the tree, the choice of an answer, and every way it ends."""

import math
from typing import get_args

import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.arm_parts.steps import mean_logprob
from ragbandit.strategies.arms.rq_rag import PathAnswer, RqRag, chosen_answer
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from ragbandit.strategies.generators.text_feed import Token
from tests.support.arms.arm_runs import JAWS, MAN, TOWN, branches, outcome_of, purposes, queries


def end_of(outcome):
    return outcome.answer, outcome.stop_reason, outcome.steps


def completion(text, *logprobs):
    tokens = tuple(Token(text=word, logprob=logprob) for word, logprob in logprobs)
    return Completion(text=text, prompt_tokens=1, completion_tokens=1, finish="stop", details={"logprobs": tokens})


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


@pytest.mark.parametrize("action", ["decompose", "disambiguate"])
def test_rq_rag_searches_every_part_in_one_round(action):
    """The parts or meanings, as many as allowed, are searched one after the other, in one round."""
    script = [action, " Spielberg\n2. Jaws\n3. spielberg\n4. Cincinnati\n5. Ohio", "Ohio"]
    outcome = outcome_of(RqRag(passages_per_query=1), script)
    assert purposes(outcome) == ["decide", action, "read"]
    assert queries(outcome) == ["Spielberg", "Jaws", "Cincinnati"]
    assert (outcome.steps, outcome.cost.passages) == (1, 2)


def test_rq_rag_refines_again_from_what_it_found():
    """At depth two the next decision and query see the passages and the queries so far."""
    generator = ScriptedGenerator(["rewrite", "Jaws film", "decompose", "Ohio", "Ohio"])
    outcome = outcome_of(RqRag(depth=2), generator)
    assert queries(outcome) == ["Jaws film", "Ohio"]
    assert "Jaws was made by Spielberg." in generator.prompts[2].body
    assert generator.prompts[3].body.endswith("Queries so far: Jaws film")
    assert end_of(outcome) == ("Ohio", "max_depth", 2)


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


def test_rq_rag_ends_where_no_query_is_new():
    """A refinement that repeats the path's queries ends the path without another search, and without another step."""
    outcome = outcome_of(RqRag(depth=3), ["rewrite", "Jaws", "decompose", "1. JAWS\n2. jaws", "Ohio"])
    assert queries(outcome) == ["Jaws"]
    assert end_of(outcome) == ("Ohio", "no_new_query", 1)
    assert branches(outcome, "no_new_query") == ["decompose"]


@pytest.mark.parametrize(("depth", "answers", "rounds"), [(1, 4, 3), (2, 13, 12), (3, 40, 39)])
def test_rq_rag_expands_the_whole_tree(depth, answers, rounds):
    """The tree has the paper's size: 13 answers and 12 refinements at depth 2, 40 and 39 at depth 3."""
    outcome = outcome_of(RqRag(tree=True, depth=depth), tree_script(answers=["Ohio"] * answers))
    said = purposes(outcome)
    assert (said.count("read"), len(said) - said.count("read")) == (answers, rounds)
    assert (outcome.cost.retriever_calls, outcome.steps) == (rounds, rounds)
    assert (outcome.answer, outcome.stop_reason) == ("Ohio", "max_depth")


def test_rq_rag_goes_through_the_tree_nearest_first():
    """A budget of four rounds has all refinements of the question and one of the second step."""
    generator = ScriptedGenerator(tree_script(answers=["Ohio"] * 5))
    outcome = outcome_of(RqRag(tree=True, depth=2), generator, rounds=4)
    assert purposes(outcome)[1::2] == ["rewrite", "decompose", "disambiguate", "rewrite"]
    assert generator.prompts[7].body.endswith("Queries so far: Jaws query 0")
    assert outcome.stop_reason == "budget_rounds"


def test_rq_rag_paths_see_only_their_own_passages():
    """A path's prompts hold the passages of its own searches, not those of its neighbours."""
    script = ["A", "Jaws film", "B", "Ohio", "C", "Spielberg Cincinnati", "D"]
    generator = ScriptedGenerator(script)
    outcome = outcome_of(RqRag(tree=True, passages_per_query=1), generator)
    shown = [[each.id for each in (JAWS, MAN, TOWN) if each.text in prompt.body] for prompt in generator.prompts]
    assert shown == [[], [], ["jaws"], [], ["town"], [], ["man"]]
    assert outcome.cost.passages == 3


def test_rq_rag_leaves_out_a_branch_without_a_new_query():
    """A refinement that repeats its path's query gets no answer, no branches and no step; the tree goes on."""
    script = ["A", *(["Jaws", "B"] * 3), *(["Jaws"] * 9)]
    outcome = outcome_of(RqRag(tree=True, depth=2), script)
    assert end_of(outcome) == ("B", "max_depth", 3)
    assert purposes(outcome).count("read") == 4
    assert len(branches(outcome, "no_new_query")) == 9


def test_rq_rag_takes_the_answer_most_paths_agree_on():
    """The vote ignores case and empty answers."""
    outcome = outcome_of(RqRag(tree=True), tree_script(answers=["ohio", "", "Ohio", "Toledo"]))
    assert outcome.answer == "Ohio"


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


def test_rq_rag_needs_logprobs_only_where_it_asks_for_them():
    """Only a tree that chooses by confidence needs logprobs."""
    needs = {
        (tree, choose): "logprobs" in RqRag(tree=tree, choose=choose).needs
        for tree in (False, True)
        for choose in ("vote", "confidence")
    }
    assert [key for key, needed in needs.items() if needed] == [(True, "confidence")]


def test_rq_rag_gives_the_answer_chosen_so_far_when_the_budget_ends():
    """A tree that runs out of tokens answers with what its paths had agreed on by then."""
    free = outcome_of(RqRag(tree=True), tree_script(answers=["Toledo", "Ohio", "Ohio", "Ohio"]))
    used = free.cost.prompt_tokens + free.cost.completion_tokens
    outcome = outcome_of(RqRag(tree=True), tree_script(answers=["Toledo", "Ohio", "Ohio", "Akron"]), tokens=used - 1)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("exhausted", "budget_tokens", "Ohio")


def test_rq_rag_counts_passages_over_the_whole_tree():
    """The budget's passages are distinct passages over all paths, not those of each."""
    script = ["A", "Jaws film", "B", "Ohio", "C", "Spielberg Cincinnati", "D"]
    outcome = outcome_of(RqRag(tree=True, passages_per_query=1), script, passages=2)
    assert outcome.cost.passages == 2
    assert branches(outcome, "passage_skipped") == ["man: pool full at 2"]


def test_rq_rag_says_what_is_wrong_with_a_setting():
    """A depth of zero and an unknown choice are refused with the name of the setting."""
    for wrong in ({"depth": 0}, {"choose": "oracle"}):
        with pytest.raises(ConfigError, match=f"arms.rq_rag.{next(iter(wrong))}"):
            RqRag(**wrong)


def test_the_mean_logprob_is_that_of_the_text():
    """Tokens behind the text's end do not count, and without tokens there is no confidence."""
    assert mean_logprob(completion("a b", ("a", -1.0), (" b", -2.0), ("\n", -9.0))) == -1.5
    assert mean_logprob(completion("", ("\n", -9.0))) == -math.inf
    assert mean_logprob(completion("x")) == -math.inf


def test_among_equal_answers_the_last_is_taken():
    """Ties of votes and of confidence go to the path with the most evidence."""
    paths = [PathAnswer(answer=text, confidence=-1.0) for text in ("one", "two", "")]
    assert [chosen_answer(paths, choose=choice) for choice in ("vote", "confidence")] == ["two", "two"]
