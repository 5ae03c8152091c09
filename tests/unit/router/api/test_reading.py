"""Bodies of requests: where they are read, and how many values they may have."""

import asyncio
import threading

import pytest
from fastapi import Request

from ragbandit.router.api.reading import LARGE, MAX_VALUES, check_values, read_body
from ragbandit.shared.errors import InvalidInput


def request_of(size):
    async def receive():
        return {"type": "http.request", "body": b" " * size, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


@pytest.mark.parametrize(("size", "thread"), [(LARGE - 1, "MainThread"), (LARGE, "read_0")])
def test_a_large_body_is_read_beside_the_event_loop(size, thread):
    """Large bodies are read by one thread, so one after the other; small ones on the loop."""
    name = asyncio.run(read_body(request_of(size), lambda: threading.current_thread().name))
    assert name == thread


@pytest.mark.parametrize(
    "body",
    [
        {f"p{number}": number for number in range(MAX_VALUES)},
        {"messages": [{"role": "user", "content": [{"type": "x"}] * (MAX_VALUES // 2)}]},
        {"input": ["a"] * MAX_VALUES},
        {"tools": [[[]] * (MAX_VALUES // 2), [[]] * (MAX_VALUES // 2)]},
    ],
    ids=["parameters", "blocks", "texts", "lists"],
)
def test_the_values_of_a_body_are_counted(body):
    """A body with more values than MAX_VALUES is refused, whatever they are."""
    with pytest.raises(InvalidInput, match="more than 200,000 values") as refused:
        check_values(body)
    assert refused.value.field == "body"


def test_tokens_and_depth_are_no_fault():
    """Lists of numbers, as embeddings have, and deep nesting are counted in linear time without recursion."""
    deep = []
    for _ in range(10_000):
        deep = [deep]
    check_values({"input": [[1] * 100_000] * 20, "deep": deep})
