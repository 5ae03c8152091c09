"""The preset "chat": answers of large chat models come whole."""

from typing import get_args

import pytest

from ragbandit.strategies.base import Need
from ragbandit.strategies.registry import ARMS, make_arms
from tests.support.arms.arm_runs import outcome_of

PARAGRAPHS = "Spielberg made Jaws. The answer is not one word.\n\nHe came from Cincinnati, in Ohio."
#: every arm whose answer a reader writes freely
CHAT = sorted(ARMS.keys() - {"http", "flare", "dragin", "seakr", "self_rag_trained"})


def made(name, **params):
    return make_arms({name: params}, capabilities=frozenset(get_args(Need)))[name]


@pytest.mark.parametrize("name", CHAT)
def test_an_answer_of_several_lines_comes_whole(name):
    """Neither a line break nor "the answer is" cuts what the model wrote."""
    outcome = outcome_of(made(name, preset="chat"), lambda prompt: PARAGRAPHS)
    assert outcome.status == "answered", outcome.error
    assert outcome.answer == PARAGRAPHS


@pytest.mark.parametrize("name", CHAT)
def test_the_default_stays_a_few_words(name):
    """Without the preset an answer is of one line and at most 32 tokens."""
    arm = made(name)
    assert (arm.params["preset"], arm.params["max_tokens"]) == ("small", 32)
    assert arm.params["style"] in ("direct", "short")


@pytest.mark.parametrize("name", CHAT)
def test_there_is_room_for_paragraphs(name):
    """The preset allows 512 tokens, and a param given beside it wins."""
    assert made(name, preset="chat").params["max_tokens"] == 512
    assert made(name, preset="chat", max_tokens=99).params["max_tokens"] == 99


@pytest.mark.parametrize("name", sorted(ARMS.keys() - {"http"}))
def test_every_arm_says_which_presets_it_has(name):
    """`presets` of the class are those that its params take."""
    kind = type(made(name))
    for preset in kind.presets:
        assert made(name, preset=preset).params["preset"] == preset
    assert ("chat" in kind.presets) is (name in CHAT)
