"""The largest request that a body may be, in each worst shape, is fitted in linear time."""

import asyncio
import json
import threading
import time
from unittest.mock import Mock

import pytest

from ragbandit.shared.model_servers.fitting.chats import fit_chat, fitting_size
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import TABLE
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.reading.thread import LARGE, READING
from ragbandit.shared.types import Conversation
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators import chat_generator
from ragbandit.strategies.generators.chat_generator import ChatGenerator
from tests.unit.shared.fitting.requests import answer, called, result, system, user

#: messages, calls or blocks of a shape, and processor seconds: many times what linear code takes
N, LIMIT_S = 6_000, 6.0


def shapes():
    ids = [f"f.{number}" for number in range(N)]
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    tools = [{"type": "custom", "custom": {"name": f"x.{number}"}} for number in range(N)]
    use = [{"type": "tool_use", "id": one, "name": "a.b", "input": {}} for one in ids]
    results = [{"type": "tool_result", "tool_use_id": one, "content": " "} for one in ids]
    return {
        "reminders": [user(), *[system() for _ in ids]],
        "users": [user() for _ in ids],
        "answers with calls": [called(one) for one in ids],
        "calls and no results": [user(), *[message for one in ids for message in (called(one), user())]],
        "results at the end": [user(), *[called(one) for one in ids], *[result(one) for one in reversed(ids)]],
        "results without calls": [result(one) for one in ids],
        "one id": [message for _ in ids for message in (called("x"), result("x"))],
        "one answer": [user(), called(*ids), *[result(one) for one in reversed(ids)]],
        "images in a result": [user(), called("x"), result("x", [image for _ in ids])],
        "blank ends": [user(), answer([{"type": "text", "text": " "} for _ in ids])],
        "calls and results in turn": [m for one in ids for m in (called(one), user(), result(one))],
        "blocks": [{"role": "assistant", "content": use}, {"role": "user", "content": results}],
        "blocks in turns": [
            {"role": role, "content": [block]}
            for pair in zip(use, results, strict=True)
            for role, block in zip(("assistant", "user"), pair, strict=True)
        ],
        "blocks without results": [m for b in use for m in ({"role": "assistant", "content": [b]}, user())],
        "results behind": [*({"role": "assistant", "content": [b]} for b in use), {"role": "user", "content": results}],
        "tools": ([user()], tools),
    }


SHAPES = shapes()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_worst_shape_takes_linear_time(shape):
    """No kind of server, and no shape, makes the rules quadratic."""
    sent = SHAPES[shape]
    messages, tools = sent if isinstance(sent, tuple) else (sent, [])
    body = {"messages": messages, "tools": tools}
    for kind in ("mistral", "bedrock"):
        began = time.process_time()
        fit_chat(body, server=TABLE[kind])
        assert time.process_time() - began < LIMIT_S, kind


def test_large_chats_do_not_hold_the_event_loop(monkeypatch):
    """A chat of many values or of long arguments is fitted in the reading thread by its size, others on the loop."""
    options, seen = OpenAiOptions(base_url="http://127.0.0.1:9/v1", api_key_env="NO_KEY"), list[tuple[str, int]]()
    generator, sizes, read = ChatGenerator("m", options=options), [0], READING.read

    async def sized(size, *given):
        sizes.append(size)
        return await read(size, *given)

    monkeypatch.setattr(chat_generator, "READING", Mock(read=sized))

    def chat_fields(_request, **_more):
        seen.append((threading.current_thread().name, sizes[-1]))
        return {}, [], RequestChanges()

    monkeypatch.setattr(generator, "chat_fields", chat_fields)
    long = called("x")
    long["tool_calls"][0]["function"]["arguments"] = json.dumps({"a": "x" * 4_000_000})
    for messages in ([user()], SHAPES["users"], [user(), long, result("x")]):
        request = Request(
            prompt=Prompt(instructions="", body="Hi"),
            max_tokens=1,
            conversation=Conversation(fields={"messages": messages}),
        )
        asyncio.run(generator._call_of(request).fields())
    assert seen[0] == (threading.main_thread().name, 0)
    assert [name.partition("_")[0] for name, _ in seen[1:]] == ["read", "read"]
    (_, users), (_, arguments) = seen[1:]
    assert LARGE < users < arguments


@pytest.mark.parametrize("value", [[[1]] * 5_000, [[[1]] * 5_000], {"b": [[[[1] * 5_000]]]}, [["x" * 100] * 3_000]])
def test_values_at_any_level_and_their_texts_count(value):
    """What is nested counts like what is not, and the count itself takes little time."""
    assert fitting_size({"a": value}) >= LARGE
    assert fitting_size({"a": [value] * 40}) >= fitting_size({"a": value})
    began = time.process_time()
    fitting_size({"a": [value] * 1_000})
    assert time.process_time() - began < LIMIT_S
