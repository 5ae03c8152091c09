"""The end of an answer of a server that goes on: the same however the bytes arrive, and found in linear work."""

import json
import random
import time

import pytest

from ragbandit.shared.model_servers.event_reader import DONE, EventReader
from ragbandit.shared.model_servers.openai_client import READ, UNREAD
from ragbandit.strategies import answer_stream
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.failures import AnswerBlocked
from ragbandit.strategies.generators import partial_reply
from ragbandit.strategies.generators.chat_generator import ChatReply
from ragbandit.strategies.generators.partial_reply import PartialReply

PROMPT = Prompt(instructions="", body="q")


def event(text):
    return b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % json.dumps(text).encode()


def ended(texts, *, together, stop=(), max_tokens=16):
    """Returns (text, finish reason, parts, last piece) after these texts, some of which arrive together."""

    async def sink(_):
        return None

    reply = PartialReply(Request(prompt=PROMPT, max_tokens=max_tokens, stop=stop, sink=sink))
    reader, events, pieces = EventReader(joins=True), list(map(event, texts)), []
    for at in range(0, len(events), together):
        for value in reader.feed(b"".join(events[at : at + together])):
            pieces += reply.read(value)
    return reply.text, reply.finish, reply.parts, pieces[-1:]


@pytest.mark.parametrize(
    ("text", "stop"),
    [("word ", ()), ("word" * 40, ()), ("a", ("aab", "aaaa")), ("<think>", ())],
    ids=["parts", "characters", "stop", "tag"],
)
@pytest.mark.parametrize("together", [2, 7, 1000])
def test_an_answer_ends_at_the_same_place_however_it_arrives(text, stop, together):
    """An answer is cut at the same place if each event arrives alone, and if many arrive together."""
    texts = [text] * 300
    assert ended(texts, together=together, stop=stop) == ended(texts, together=1, stop=stop)


def test_a_stop_string_is_found_as_in_the_whole_text():
    """A text ends at the stop string that ends first, at any split of the text."""
    random_ = random.Random(7)
    for _ in range(300):
        texts = ["".join(random_.choices("ab", k=random_.randint(1, 3))) for _ in range(12)]
        stop = tuple("".join(random_.choices("ab", k=random_.randint(1, 6))) for _ in range(2))
        whole = ""
        for text in texts:
            whole += text
            end = answer_stream.first_stop(whole, stop)
            if end is not None:
                whole = whole[:end]
                break
        for together in (1, 3, 12):
            assert ended(texts, together=together, stop=stop)[0] == whole


def test_an_answer_is_searched_for_stop_strings_once(monkeypatch):
    """Each part of an answer is searched for stop strings with the few characters before it, not with all of them."""
    searched = []

    class Searched(str):
        __slots__ = ()

        def find(self, part, start=0):
            searched.append(len(self) - start)
            return str.find(self, part, start)

    def first_stop(text, stops, *, searched=0):
        return answer_stream.first_stop(Searched(text), stops, searched=searched)

    monkeypatch.setattr(partial_reply, "first_stop", first_stop)
    ended(["ab "] * 1000, together=1, stop=("END", "\n\n"), max_tokens=1000)
    assert sum(searched) < 20_000


def called(arguments, *, finish, usage, kind="tool_calls", max_tokens=5):
    """The finish reason of a reply, whole and streamed, whose last call has these arguments."""
    function = {"name": "weather", "arguments": arguments}
    calls = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        {"index": 1, "id": "b", "type": "function", "function": function},
    ]
    message = {"tool_calls": calls} if kind == "tool_calls" else {"function_call": function}
    reasons = set()
    for field in ("message", "delta"):
        reply = PartialReply(Request(prompt=PROMPT, max_tokens=max_tokens), uses_functions=kind == "function_call")
        reply.read({"choices": [{"index": 0, field: message, "finish_reason": finish}]})
        reply.read({"choices": [], "usage": usage} if usage else DONE)
        reply.end()
        reasons.add(reply.finish)
    return reasons


HALF = '{"city": "Os'


@pytest.mark.parametrize(
    ("arguments", "changes", "expected"),
    [
        (HALF, {}, "length"),
        (HALF, {"finish": "stop"}, "length"),
        (HALF, {"finish": "stop", "kind": "function_call"}, "length"),
        (HALF, {"usage": None}, "length"),
        (HALF, {"usage": {"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 3}}}, "length"),
        ('{"city": [1, tr', {}, "length"),
        (HALF, {"max_tokens": 6}, "tool_calls"),
        (HALF, {"usage": None, "max_tokens": 100}, "tool_calls"),
        ('{"city": "Oslo"}', {}, "tool_calls"),
        ("", {}, "tool_calls"),
        (HALF, {"finish": "content_filter", "usage": None, "max_tokens": 100}, None),
    ],
)
def test_a_call_that_the_limit_cut_off(arguments, changes, expected):
    """If all tokens are used and a call has half a JSON, the limit ended the reply, whatever the server says."""
    options = {"finish": "tool_calls", "usage": {"completion_tokens": 5}, **changes}
    if expected is None:
        with pytest.raises(AnswerBlocked):
            called(arguments, **options)
        return
    assert called(arguments, **options) == {expected}


@pytest.mark.parametrize("kind", [PartialReply, ChatReply])
def test_pieces_wait_between_the_first_one_and_the_end(kind):
    """Pieces may wait after the first one with content, longer if nobody reads them, but not after the finish reason
    and not near the deadline.
    """

    async def sink(_):
        return None

    def paces(seconds=None, sink=None):
        deadline = None if seconds is None else time.monotonic() + seconds
        reply = kind(Request(prompt=PROMPT, max_tokens=16, sink=sink, deadline=deadline))
        chunks = [{"delta": {"role": "assistant"}}, {"delta": {"content": "a"}}, {"delta": {}, "finish_reason": "stop"}]
        for choice in chunks:
            list(reply.read({"choices": [choice]}))
            yield reply.pace()

    assert list(paces()) == list(paces(60)) == [None, UNREAD, None]
    assert list(paces(60, sink)) == [None, READ, None]
    assert list(paces(0)) == list(paces(0.1, sink)) == [None, None, None]
