"""dragin: entropy times attention decides about a search, with scripted entropies and attentions."""

import re

import numpy as np
import pytest

from ragbandit.additions.research_arms.dragin import Dragin, attention_received
from ragbandit.additions.research_arms.lookahead import merge_words
from ragbandit.additions.research_arms.replies import is_content
from ragbandit.strategies.generators.parts import Attention
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from tests.support.arms.arm_runs import branches, outcome_of, purposes, queries

PIECE = re.compile(r"\s*\S+")
TEXT = "Spielberg came from Toledo. He"


def telling(text, *, doubts=(), looks=(), keys=None):
    """An answer whose tokens attend to themselves, except for `looks`: (written word, key word, weight).

    With equal shares, the value of a word is its entropy: 0.5, or its entry in `doubts`.
    """
    doubts = dict(doubts)

    def answer(prompt):
        read = PIECE.findall(f"{prompt.instructions}\n{prompt.body}\n{prompt.prefix}") if keys is None else keys
        written = PIECE.findall(text)
        names = [piece.strip() for piece in [*read, *written]]
        weights = np.zeros((1, len(written), len(names)), dtype=np.float32)
        for row in range(len(written)):
            weights[0, row, len(read) + row] = 1.0
            for word, key, weight in looks:
                if written[row].strip() == word:
                    weights[0, row, max(at for at, name in enumerate(names) if name == key)] += weight
                    weights[0, row, len(read) + row] -= weight
        entropy = tuple(doubts.get(piece.strip(), 0.5) for piece in written)
        attention = Attention(weights=weights, keys=(*read, *written))
        return Scripted(text=text, details={"entropy": entropy, "attention": attention})

    return answer


def model(*answers, **settings):
    left = list(answers)

    def answer(prompt):
        said = left.pop(0)
        return said(prompt) if callable(said) else said

    return ScriptedGenerator(answer, capabilities={"completion", "stop", "entropy", "attention"}, **settings)


def arm(**params):
    return Dragin(**{"theta": 1.0, "sentences": 3, **params})


def test_an_uncertain_word_is_searched_for_with_what_it_looked_at():
    """The query holds the question's words that the hit looked at, in their order, and neither hit nor stop words."""
    looks = [
        ("Toledo.", "Jaws", 0.2),
        ("Toledo.", "maker", 0.1),
        ("Toledo.", "the", 0.1),
        ("Toledo.", "Spielberg", 0.1),
    ]
    ahead = telling(TEXT, doubts={"Toledo.": 9.0}, looks=looks)
    generator = model(ahead, "Spielberg came from Cincinnati. He was", telling("So the answer is: Ohio."))
    outcome = outcome_of(arm(), generator)
    assert branches(outcome, "uncertain_words") == ["Toledo."]
    assert queries(outcome) == ["maker Jaws Spielberg"]
    assert purposes(outcome) == ["look_ahead", "write", "look_ahead"]
    assert "Jaws was made by Spielberg." in generator.prompts[1].body
    assert "Jaws was made" not in generator.prompts[0].body + generator.prompts[2].body
    assert generator.prompts[2].prefix == "Spielberg came from Cincinnati."
    assert (outcome.answer, outcome.steps) == ("Ohio", 1)


@pytest.mark.parametrize(
    ("params", "script", "budget", "ended"),
    [
        ({}, [telling("Jaws is old. So the answer is: Ohio.")], {}, ("Ohio", "answer_found", 0)),
        ({}, ["", "Ohio"], {}, ("Ohio", "empty_text", 0)),
        ({}, [telling("Toledo.", doubts={"Toledo.": 9.0}), "", "Ohio"], {}, ("Ohio", "empty_text", 1)),
        ({}, [telling("Jaws is old."), "Ohio"], {}, ("Ohio", "model_ended", 0)),
        ({"sentences": 1}, [telling("Jaws is old. He"), "Ohio"], {}, ("Ohio", "max_sentences", 0)),
        ({}, [telling("Toledo.", doubts={"Toledo.": 9.0}), "Ohio"], {"rounds": 0}, ("Ohio", "model_ended", 0)),
        ({}, ["", ""], {}, ("", "empty_answer", 0)),
    ],
)
def test_the_text_ends_by_every_rule(params, script, budget, ended):
    """A sure text is accepted whole; where none announces an answer it is asked for; a search refused is noted."""
    outcome = outcome_of(arm(**params), model(*script), **budget)
    assert (outcome.status, (outcome.answer, outcome.stop_reason, outcome.steps)) == ("answered", ended)
    assert len(purposes(outcome)) == len(script)
    assert branches(outcome, "search_skipped") == (["no round is left"] if budget else [])


def test_attention_of_the_wrong_shape_is_a_failure():
    """Attention that does not fit the written tokens fails the arm and names the shapes."""
    attention = Attention(weights=np.ones((1, 3, 4), dtype=np.float32) / 4, keys=("a", "b", "c", "d"))
    outcome = outcome_of(
        arm(), model(Scripted(text="Toledo.", details={"entropy": (1.0, 2.0), "attention": attention}))
    )
    assert outcome.status == "failed"
    assert "(1, 3, 4) does not fit 2 written tokens" in outcome.error


def test_attention_received_is_the_highest_look_averaged_over_heads():
    """Per written token the maximum over written tokens, without the prompt, then the mean over heads."""
    weights = np.array(
        [[[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]], [[0.9, 0.1, 0.0], [0.2, 0.6, 0.2]]], dtype=np.float32
    )  # (2 heads, 2 written, 1 read + 2 written)
    np.testing.assert_allclose(attention_received(Attention(weights=weights, keys=("p", "a", "b"))), [0.55, 0.45])


def test_pieces_of_words_are_merged():
    """Tokens without a space before them belong to the word before; a word knows its tokens and its place."""
    words = merge_words(["Cin", "cin", "nati", " lies", " ", "in a", " b"])
    assert [(word.text, word.tokens, word.begin) for word in words] == [
        ("Cincinnati", (0, 1, 2), 0),
        ("lies", (3,), 11),
        ("in", (5,), 16),
        ("a", (5,), 19),
        ("b", (6,), 21),
    ]


@pytest.mark.parametrize(
    ("word", "content"),
    [
        ("Toledo.", True),
        ("from", False),
        ("The", False),
        ("1975", True),
        ("7", True),
        ("x", False),
        ("--", False),
        ("", False),
        ("Spielberg's", True),
        ("it's", False),
        ("北", True),
    ],
)
def test_content_words_are_told_by_list_and_length(word, content):
    """Stop words, single letters and punctuation have no content; names, numbers and other scripts have."""
    assert is_content(word) is content
