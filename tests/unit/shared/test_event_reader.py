"""Bodies of model servers: server-sent events in all their forms, and documents."""

import json

import pytest

from ragbandit.shared.model_servers.event_reader import DONE, BrokenReply, EventReader
from ragbandit.shared.reading.input_counts import REPLY


def values(body, *, size=None):
    reader, found = EventReader(), []
    size = size or max(1, len(body))
    for start in range(0, len(body), size):
        found += reader.feed(body[start : start + size])
    return [*found, *reader.end()]


A, B = {"a": "Zürich"}, {"b": [1, 2]}

BODIES = {
    "events": (b'data: {"a": "Z\xc3\xbcrich"}\n\ndata: {"b": [1, 2]}\n\ndata: [DONE]\n\n', [A, B, DONE]),
    "carriage returns": (b'data:{"a": "Z\\u00fcrich"}\r\n\r\nid: 1\rretry: 5\r\rdata: {"b": [1, 2]}\r\n\r\n', [A, B]),
    "comments, names and signs of life": (
        b': wait\n\nevent: ping\ndata: {"b": [1, 2]}\n\ndata: null\n\ndata:\n\ndata: ping\n\ndata: 7\n\n: end\n\n',
        [B],
    ),
    "an event in several lines": (b'data: {"b":\ndata: [1,\ndata: 2]}\n\n', [B]),
    "no lines between events": (b'data: {"b": [1, 2]}\ndata: null\ndata: {"b": [1, 2]}\ndata: [DONE]\n', [B, B, DONE]),
    "encoded twice": (b'data: data: {"b": [1, 2]}\r\ndata: \r\ndata: \r\n\r\ndata: data: [DONE]\n\n', [B, DONE]),
    "words in brackets": (
        b'data: [PING]\n\ndata: [{"b": [1, 2]}]\n\ndata: [KEEPALIVE]\n\ndata: [done]\n\n',
        [[B], DONE],
    ),
    "an end in quotes": (b'data: {"b": [1, 2]}\n\ndata: "[DONE]"\n\n', [B, DONE]),
    "a field of errors": (b'data: {"b": [1, 2]}\n\nerror: {"code": 500}\n\n', [B, {"error": {"code": 500}}]),
    "a line of JSON": (
        b'data: {"b": [1, 2]}\n\n{"error": {"code": 500}}\ndata: [DONE]\n\n',
        [B, {"error": {"code": 500}}, DONE],
    ),
    "encoded without end": (b"data:" * 99 + b' {"b": 1}\n\ndata: {"b": [1, 2]}\n\n', [B]),
    "no end": (b'data: {"b": [1, 2]}', [B]),
    "control characters": (b'data: {"a": "1\t2"}\n\n', [{"a": "1\t2"}]),
    "broken characters": (b'data: {"a": "x\xff"}\n\n', [{"a": "x\ufffd"}]),
    "an error in words": (b"event: error\ndata: too busy\n\n", [{"error": "too busy"}]),
    "a named error": (b'event: error\ndata: {"message": "too busy"}\n\n', [{"error": {"message": "too busy"}}]),
    "a document": (b'\xef\xbb\xbf\r\n {"b":\n\n[1, 2]}\n', [B, DONE]),
    "a document and a blank end": (b'{"b": [1, 2]}' + b" " * 200, [B, DONE]),
    "a list": (b'[\n{"a": "Z\xc3\xbcrich"},\n{"b": [1, 2]}\n]\n', [A, B, DONE]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("size", [None, 1, 7])
@pytest.mark.parametrize("name", BODIES)
def test_a_body_gives_the_same_values_however_the_network_cuts_it(name, size):
    """The values of a body do not depend on where its bytes are cut."""
    body, expected = BODIES[name]
    assert values(body, size=size) == expected


def test_a_document_is_read_before_its_connection_ends():
    """A whole document comes at once, since the connection may stay open or break after it."""
    reader = EventReader()
    assert list(reader.feed(b'{"b": ')) == []
    assert list(reader.feed(b"[1, 2]}\n")) == [B, DONE]
    assert (list(reader.end()), reader.unread) == ([], 0)


def test_blank_bytes_behind_an_object_are_work_too():
    """Blank bytes behind what may be the end of a document let it be parsed whole, so `work` counts it."""
    reader, part = EventReader(), b'[{"a": "' + b"x" * 1000 + b'"}'
    assert list(reader.feed(part)) == []
    assert reader.work(b" ") > len(part)
    assert reader.work(b'"') == 0
    assert reader.unread == len(part)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Sign in</html>",
        b"Service unavailable",
        b'{"choices": [{"mess',
        b'data: {"choices"\n\n',
        b'{"a": ' + b"[" * 100_000,
        json.dumps({"a": "x" * REPLY["open"].most}).encode(),
        b"data: " + b"x" * REPLY["open"].most,
        b"data:\n" * 200_000,
        b":\r" * 200_000,
        b'data: {"a": [' + b"{}," * REPLY["objects"].most + b"{}]}\n\n",
        b"[" + b"1," * REPLY["items"].most + b"1]",
    ],
    ids=[
        *("page", "text", "half a document", "half an event", "deep", "large document", "large event"),
        *("data without text", "comments", "objects", "items"),
    ],
)
def test_another_body_is_a_broken_reply(body):
    """A body that is neither events nor a document, is cut, or is too large is refused with its first characters."""
    with pytest.raises(BrokenReply) as error:
        values(body, size=100_000)
    assert len(str(error.value)) < 300


def test_values_before_a_broken_event_are_given():
    """A broken event takes nothing from the events before it, though they came in the same bytes."""
    events = EventReader().feed(b'data: {"b": [1, 2]}\n\ndata: {half\n\n')
    assert next(events) == B
    with pytest.raises(BrokenReply):
        next(events)
