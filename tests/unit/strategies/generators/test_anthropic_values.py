"""The values of Anthropic's replies, as they are read."""

import asyncio
from contextlib import aclosing
from itertools import chain

import pytest

from ragbandit.shared.model_servers.anthropic_replies import ChatChunks
from ragbandit.shared.model_servers.event_reader import BrokenReply
from ragbandit.shared.model_servers.message_parts import MAX_PARTS
from ragbandit.shared.model_servers.openai_options import AnthropicOptions
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators import anthropic_generator
from ragbandit.strategies.generators.anthropic_generator import AnthropicGenerator


def test_one_value_of_many_blocks_gives_the_loop_back(monkeypatch):
    """While the blocks of one whole message are read, other tasks of the event loop run."""

    async def one_message(*_given, **_more):
        yield {"type": "message", "content": [{"type": "x"}] * 2000}

    monkeypatch.setattr(anthropic_generator, "reply_values", one_message)
    request = Request(prompt=Prompt(instructions="", body="hi"), max_tokens=1)

    async def turns():
        count = 0

        async def read():
            generator = AnthropicGenerator(
                "claude", options=AnthropicOptions(api_key_env="NO_KEY", base_url="http://127.0.0.1:9")
            )
            async with aclosing(generator._values({}, request=request)) as values:
                async for _ in values:
                    pass

        task = asyncio.ensure_future(read())
        while not task.done():
            count += 1
            await asyncio.sleep(0)
        await task
        return count

    assert asyncio.run(turns()) >= 4000 // 64


@pytest.mark.parametrize("kind", ["whole", "open"])
def test_blocks_are_counted(kind):
    """More blocks than MAX_PARTS, whole or begun and not ended, are a broken reply."""
    chunks = ChatChunks()
    begin = [{"type": "content_block_start", "index": n, "content_block": {"type": "x"}} for n in range(MAX_PARTS + 2)]
    values = [{"type": "message", "content": [{"type": "x"}] * (MAX_PARTS + 1)}] if kind == "whole" else begin
    with pytest.raises(BrokenReply, match="blocks"):
        list(chain.from_iterable(map(chunks.of, values)))
