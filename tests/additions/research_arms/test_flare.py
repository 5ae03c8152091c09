"""flare: look ahead, search when unsure, with scripted log-probabilities."""

import math
import re

import pytest
from hypothesis import given, strategies as some

from ragbandit.additions.research_arms.flare import Flare
from ragbandit.additions.research_arms.lookahead import LatestPool, tokens_between
from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.generators.parts import Token
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from tests.support.arms.arm_runs import branches, outcome_of, purposes, queries, run_of

SURE = "Spielberg made Jaws. "
ENDED = "So the answer is: Ohio."


def said(text, *, unlikely=(), p=0.1):
    """A text with certain tokens, except for the named words."""
    pieces = re.findall(r"\s*\S+", text)
    return Scripted(
        text=text,
        details={
            "logprobs": tuple(
                Token(text=piece, logprob=math.log(p if piece.strip() in unlikely else 0.9)) for piece in pieces
            )
        },
    )


def model(*answers, **settings):
    return ScriptedGenerator(answers, capabilities={"completion", "stop", "logprobs"}, **settings)


def arm(**params):
    return Flare(**{"theta": 0.8, "beta": 0.4, "sentences": 3, **params})


def test_an_unsure_sentence_is_searched_for_without_its_unlikely_tokens():
    """One token at theta or below makes a query of the sentence without tokens at beta or below; it is rewritten."""
    ahead = said("Spielberg came from Toledo. He x", unlikely=["Toledo."])
    outcome = outcome_of(arm(), model(ahead, said("Spielberg came from Cincinnati. He"), said(ENDED)))
    assert queries(outcome)[1:] == ["Spielberg came from"]
    assert purposes(outcome) == ["look_ahead", "write", "look_ahead"]
    assert (outcome.answer, outcome.steps) == ("Ohio", 2)


@pytest.mark.parametrize(
    ("sentences", "script", "budget", "ended"),
    [
        (3, [said(""), "Ohio"], {}, ("Ohio", "empty_sentence")),
        (3, [said("Spielberg made Jaws."), "Ohio"], {}, ("Ohio", "model_ended")),
        (2, [said(f"{SURE}He"), said(f"{SURE}He"), "Ohio"], {}, ("Ohio", "max_sentences")),
        (1, [said("Toledo. He", unlikely=["Toledo."]), "Ohio"], {"rounds": 1}, ("Ohio", "max_sentences")),
        (3, [said(""), ""], {}, ("", "empty_answer")),
    ],
)
def test_the_text_ends_by_every_rule(sentences, script, budget, ended):
    """Each rule has its reason, and the answer is asked for; an unsure text without a round left is accepted."""
    outcome = outcome_of(arm(sentences=sentences), model(*script), **budget)
    assert (outcome.status, outcome.answer, outcome.stop_reason, outcome.steps) == ("answered", *ended, 1)
    assert purposes(outcome) == ["look_ahead"] * (len(script) - 1) + ["conclude"]
    assert branches(outcome, "search_skipped") == (["no round is left"] if budget else [])


@given(some.lists(some.text("ab ", min_size=1, max_size=3), max_size=8), some.integers(0, 20), some.integers(0, 20))
def test_tokens_between_are_those_with_a_character_there(texts, begin, end):
    """A token is found if and only if one of its characters stands in the span."""
    tokens, place, expected = [Token(text=text, logprob=0.0) for text in texts], 0, []
    for token in tokens:
        if any(begin <= place + at < end for at in range(len(token.text))):
            expected.append(token)
        place += len(token.text)
    assert tokens_between(tokens, begin=begin, end=end) == tuple(expected)


def test_the_pool_of_the_latest_search_heeds_all_that_was_shown():
    """New passages replace the old, fewer than the budget's distinct ones; a search without any leaves the old."""
    one, two, three = (Hit(passage=Passage(id=i, title=i, text=i * 9), score=1.0) for i in "abc")
    run = run_of(passages=2)
    pool = LatestPool(run, cap=2)
    pool.add([one])
    run.note_shown(pool.passages)
    assert pool.add([two, three]).skipped == (("c", "the budget allows 2 passages"),)
    assert [each.id for each in pool.passages] == ["b"]
    run.note_shown(pool.passages)
    assert pool.add([three]).added == ()
    assert [each.id for each in pool.passages] == ["b"]
    assert pool.add([one]).added == ("a",)
