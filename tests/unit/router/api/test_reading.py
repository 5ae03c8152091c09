"""Bodies of requests: where they are read, and how many values they may have."""

import asyncio
import json
import threading
import traceback

import pytest
from fastapi import Request
from hypothesis import given, strategies as st

from ragbandit.router.api.reading import body_value, reads_body
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.reading.input_counts import BODY, Cap, InputCounts
from ragbandit.shared.reading.thread import LARGE

MOST = BODY["values"].most


def request_of(size):
    async def receive():
        return {"type": "http.request", "body": b" " * size, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


@pytest.mark.parametrize(("size", "thread"), [(LARGE - 1, "MainThread"), (LARGE, "read_0")])
def test_a_large_body_is_read_beside_the_event_loop(size, thread):
    """Large bodies are read by one thread, so one after the other; small ones on the loop."""

    class Door:
        @reads_body
        def read(self, request, *, key):
            return threading.current_thread().name, key

    assert asyncio.run(Door().read(request_of(size), key="k")) == (thread, "k")


@pytest.mark.parametrize(
    "body",
    [
        {f"p{number}": "x" * 30 for number in range(BODY["parameters"].most + 1)},
        {"metadata": {f"p{number}": number for number in range(MOST)}},
        {"messages": [{"role": "user", "content": [{"type": "x"}] * (MOST // 2)}]},
        {"input": ["a"] * MOST},
        {"tools": [[[]] * (MOST // 2), [[]] * (MOST // 2)]},
        {"input": [1] * BODY["items"].most},
    ],
    ids=["parameters", "names", "blocks", "texts", "lists", "numbers"],
)
def test_the_values_of_a_body_are_counted(body):
    """A body with more values than its caps is refused, whatever they are."""
    with pytest.raises(InvalidInput, match="the body has more than") as refused:
        body_value(json.dumps(body).encode())
    assert refused.value.field == "body"


VALUES = st.recursive(
    st.none() | st.integers(0, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2), inner, max_size=6),
    max_leaves=30,
)


@given(body=VALUES, most=st.integers(0, 40))
def test_a_body_whose_values_are_not_counted_has_few(body, most):
    """Whether the values of a body need to be counted is right by its commas and brackets."""
    counts = InputCounts(BODY | {"values": Cap(most, "values")}, refused=InvalidInput)

    def is_refused(items):
        try:
            counts.count_members(body, items=items)
        except InvalidInput:
            return True
        return False

    assert is_refused(counts.count_json(json.dumps(body).encode())) == is_refused(most + 1)


@given(body=VALUES)
def test_a_body_has_fewer_values_than_bytes(body):
    """A body with fewer bytes than values are allowed needs no count."""
    data = json.dumps(body, separators=(",", ":")).encode()
    counts = InputCounts(BODY | dict.fromkeys(("objects", "items", "values"), Cap(len(data), "")), refused=InvalidInput)
    counts.count_members(body, items=counts.count_json(data) + len(data))


def test_a_refusal_does_not_keep_the_body():
    """The error for a body with too many values holds none of them, so several refused bodies do not add up."""
    body = json.dumps({"metadata": {f"p{number}": "v" for number in range(MOST)}}).encode()
    with pytest.raises(InvalidInput) as refused:
        body_value(body)
    frames = [frame for frame, _ in traceback.walk_tb(refused.value.__traceback__)][1:]  # the first is this one
    kept = [value for frame in frames for value in frame.f_locals.values() if isinstance(value, dict | list)]
    assert frames
    assert kept == []


def test_brackets_in_texts_and_tokens_are_no_fault():
    """Lists of numbers, as embeddings have, and texts of JSON are no values."""
    body = {"input": [[1] * 100_000] * 15, "text": '{"a":[' * MOST, "escaped": '"\\\\' * MOST}
    assert body_value(json.dumps(body).encode()) == body


@pytest.mark.parametrize("levels", [201, 202])
@pytest.mark.parametrize("text", ["", "\ud800"], ids=["parser", "second parser"])
def test_the_levels_of_a_body_are_counted(levels, text):
    """More than 201 levels are refused by both parsers, however deep the caller is on its stack."""
    body = b"[" * (levels - 1) + json.dumps([text]).encode() + b"]" * (levels - 1)
    if levels == 201:
        assert body_value(body)
    else:
        with pytest.raises(ValueError, match="levels"):
            body_value(body)
