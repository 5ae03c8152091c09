"""The largest request that a body may be, in each worst shape, is fitted in linear time."""

import asyncio
import threading
import time

import pytest

from ragbandit.shared.model_servers.fitting.chats import fit_chat, is_large
from ragbandit.shared.model_servers.fitting.fitted import Fitted
from ragbandit.shared.model_servers.fitting.kinds import TABLE
from ragbandit.shared.model_servers.fitting.messages import fit_messages
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from tests.unit.shared.fitting.requests import answer, called, result, system, user

#: messages, calls or blocks of a shape, and processor seconds: many times what linear code takes
N, LIMIT_S = 6_000, 1.5


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
        fit_chat(body, takes=TABLE[kind])
        assert time.process_time() - began < LIMIT_S, kind
    began = time.process_time()
    fit_messages(body, takes=TABLE["anthropic"], fitted=Fitted())
    assert time.process_time() - began < LIMIT_S


def test_large_chats_do_not_hold_the_event_loop(monkeypatch):
    """A chat of many values is fitted in the reading thread, and an ordinary one on the event loop."""
    options = OpenAiOptions(base_url="http://127.0.0.1:9/v1", api_key_env="NO_KEY")
    generator, threads = OpenAiGenerator("m", options=options), list[str]()
    monkeypatch.setattr(generator, "_fields", lambda _request: threads.append(threading.current_thread().name))
    for messages in (SHAPES["users"], [user()]):
        request = Request(prompt=Prompt(instructions="", body="Hi"), max_tokens=1, chat={"messages": messages})
        asyncio.run(generator._fitted(request))
    assert is_large({"a": [[[1]] * 5_000]})
    assert (threads[0].startswith("read"), threads[1]) == (True, threading.main_thread().name)
