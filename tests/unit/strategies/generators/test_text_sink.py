"""The text of a call, given piece by piece: nothing that is taken back, nothing that is missing."""

import asyncio
import random
import time

import pytest

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies import answer_stream
from ragbandit.strategies.answer_stream import AnswerStream
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.testing.doubles import STREAM_CHECKS, RecordingReader, streamed

PROMPT = Prompt(instructions="", body="Where?")


def sink_with(*stop):
    reader = RecordingReader()
    return AnswerStream(reader).sink(str, stop=stop), reader.pieces


def grown(*texts, stop=(), end=None):
    """The pieces of a text that grows like this."""
    sink, pieces = sink_with(*stop)

    async def run():
        for text in texts:
            await sink(text)
        if end is not None:
            await sink.end(end)

    asyncio.run(run())
    return pieces


def test_a_growing_text_is_searched_for_stop_strings_once(monkeypatch):
    """The sink searches the new part of a text, and sends what it sends after a search of the whole text."""
    texts, stop = [("ab E\n" * 80 + "END ab E" * 9)[:size] for size in range(450)], ("EN", "\n\n", "ab Eab")
    known_sizes, find = [], answer_stream.first_stop

    def first_stop(text, stops, *, searched=0):
        known_sizes.append(searched)
        return find(text, stops, searched=searched)

    monkeypatch.setattr(answer_stream, "first_stop", first_stop)
    pieces = grown(*texts, stop=stop)
    assert sum(map(len, texts)) - sum(known_sizes) < 30 * len(texts)
    monkeypatch.setattr(answer_stream, "first_stop", lambda text, stops, **_: find(text, stops))
    assert pieces == grown(*texts, stop=stop)
    assert "".join(pieces) == "ab E\n" * 80


@pytest.mark.parametrize("check", STREAM_CHECKS, ids=lambda check: check.__name__)
def test_the_scripted_generator_keeps_the_contract(check):
    """ScriptedGenerator gives out what it returns."""
    check(lambda text: ScriptedGenerator(lambda _: text, word_seconds=0.0005))


def test_a_scripted_text_is_streamed_word_by_word():
    """Each word is a piece."""
    assert streamed(ScriptedGenerator(lambda _: "one two three"))[1] == ["one", " two", " three"]


def test_the_beginning_of_a_stop_string_waits():
    """What may become a stop string is held back until it is one or is none."""
    assert grown("a", "a<", "a<e", "a<en", stop=("<end>",)) == ["a"]
    assert grown("a<en", "a<eno", stop=("<end>",)) == ["a", "<eno"]
    assert grown("a<end>b", stop=("<end>",)) == ["a"]
    assert grown("abab", "ababc", stop=("ababc",), end="") == []
    assert grown("x\n", stop=("\n\nQ",), end="x\n") == ["x", "\n"]


def test_half_a_character_waits():
    """Neither U+FFFD at the end nor half of a surrogate pair is given out before it is known to be text."""
    assert grown("Z\ufffd", "Zü") == ["Z", "ü"]
    assert grown("Z\ud83d", "Z\U0001f600") == ["Z", "\U0001f600"]
    assert grown("Z\ufffd", end="Z\ufffd") == ["Z", "\ufffd"]


def test_a_second_attempt_goes_on_where_the_first_one_was():
    """The same words again are not given again; other words fail the call."""
    assert grown("The ferry", "The", "The ferry leaves", end="The ferry leaves.") == ["The ferry", " leaves", "."]
    with pytest.raises(ArmFailed, match="the second attempt has other words"):
        grown("The ferry", "A boat leaves")
    with pytest.raises(ArmFailed, match="the second attempt has other words"):
        grown("The ferry", end="The")


def test_pieces_are_a_prefix_at_every_moment():
    """For 300 random texts, cuts and stop strings: what was given is always a beginning of the final text."""
    dice = random.Random(4)
    for _ in range(300):
        text = "".join(dice.choice("ab\n") for _ in range(dice.randint(0, 12)))
        stops = tuple(
            "".join(dice.choice("ab\n") for _ in range(dice.randint(1, 4))) for _ in range(dice.randint(0, 3))
        )
        found = [text.find(stop) for stop in stops if stop in text]
        sink, pieces = sink_with(*stops)
        written = ""
        for char in text:  # a model that stops at the first stop string it has written
            written += char
            asyncio.run(sink(written))
            if any(stop in written for stop in stops):
                break
        ends = [written.find(stop) for stop in stops if stop in written]
        final = written[: min(ends)] if ends else written
        asyncio.run(sink.end(final))
        assert "".join(pieces) == final
        assert bool(ends) == bool(found)


def test_the_deadline_ends_a_scripted_text_between_two_words():
    """The words so far are text and pieces alike, and finish says "deadline"."""
    sink, pieces = sink_with()
    slow = ScriptedGenerator(lambda _: "one two three four", word_seconds=0.5)
    request = Request(prompt=PROMPT, max_tokens=9, sink=sink, deadline=time.monotonic() + 1.2)
    done = asyncio.run(slow.complete(request))
    assert done.finish == "deadline"
    assert done.text == "".join(pieces)
    assert 0 < len(done.text) < len("one two three four")
