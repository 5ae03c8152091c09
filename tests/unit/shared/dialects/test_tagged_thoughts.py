"""Thoughts in tags at the beginning of an answer are no part of the answer."""

import time

import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.dialects.chat.tagged_thoughts import TaggedThoughts
from tests.unit.shared.dialects.replies import chunk, read

TEXTS = {
    "<think>Perhaps Lyon?</think>\n\nParis.": ("Perhaps Lyon?", "Paris."),
    "\n<think>\nLyon?\n</think>Paris. ": ("Lyon?", "Paris. "),
    "<thought>Lyon </think> no</thought> Paris": ("Lyon </think> no", "Paris"),
    "<think>\n\n</think>\n\nParis.": ("", "Paris."),
    "<think>Lyon, or": ("Lyon, or", ""),
    "<think>Lyon</thi": ("Lyon</thi", ""),
    "<think>a</think><think>b</think>": ("a", "<think>b</think>"),
    "Paris. <think>Lyon</think>": ("", "Paris. <think>Lyon</think>"),
    "<thinking>Lyon</thinking>Paris": ("", "<thinking>Lyon</thinking>Paris"),
    "<th": ("", "<th"),
    " \n": ("", " \n"),
    " " * 80 + "<think>a</think>": ("", " " * 80 + "<think>a</think>"),
    "": ("", ""),
}


def separated(pieces):
    tagged = TaggedThoughts()
    parts = [*map(tagged.split, pieces), tagged.rest()]
    return tuple("".join(column) for column in zip(*parts, strict=True))


@pytest.mark.parametrize("text", TEXTS)
def test_thoughts_are_separated_whole_and_in_every_cut(text):
    """The whole text, single characters and all cuts in two give the same; only white space at the end may differ."""
    thoughts, answer = TEXTS[text]
    cuts = [[text], list(text), *([text[:at], text[at:]] for at in range(len(text)))]
    for pieces in cuts:
        seen = separated(pieces)
        assert (seen[0].rstrip(), seen[1]) == (thoughts, answer)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<thought>", "</", "think>", "a", " ", "\n", "<"]), max_size=12)
)
def test_pieces_give_the_same_as_the_whole(pieces):
    """However a text is cut, its thoughts and its answer are the same."""
    whole, cut = separated(["".join(pieces)]), separated(pieces)
    assert (whole[0].rstrip(), whole[1]) == (cut[0].rstrip(), cut[1])


@pytest.mark.parametrize("piece", ["a", "<", "</think", "</thin ", " ", "<think>"])
def test_many_pieces_take_linear_time(piece):
    """100,000 pieces of thoughts take under a second of processor time."""
    tagged, begin = TaggedThoughts(), time.process_time()
    tagged.split("<think>")
    for _ in range(100_000):
        tagged.split(piece)
    assert time.process_time() - begin < 1.0


def test_a_reply_has_the_thoughts_apart():
    """A streamed and a whole reply have the answer as text and the thoughts as reasoning_content; the text is held back
    until it is clear what it is.
    """
    streamed = read(
        *(chunk({"content": piece}) for piece in ("<thi", "nk>Ly", "on?</think", ">\n\nPar", "is.")), chunk({}, "stop")
    )
    whole = read({"choices": [{"message": {"content": "<think>Lyon?</think>\n\nParis."}, "finish_reason": "stop"}]})
    for reply in (streamed, whole):
        assert (reply.text, reply.message.whole["reasoning_content"]) == ("Paris.", "Lyon?")
    held = read(chunk({"content": "<thi"}), chunk({}, "stop"))
    assert (held.text, held.message.whole) == ("<thi", {})
