"""What settings of the generator "openai" do at a server."""

import asyncio

import pytest

from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.testing.openai_server import ScriptedServer
from ragbandit.workers.wiring.generators import make_generator
from tests.support.servers.openai_settings import settings


def test_prices_reach_the_generator():
    """A price of the file is charged, and the model's name and context go along."""
    with ScriptedServer(["Paris it is"]) as server:
        generator = make_generator(settings(base_url=server.url, token_prices={"gpt": [1e6, 2e6]}))

        async def once():
            done = await generator.complete(Request(prompt=Prompt(instructions="", body="Where?"), max_tokens=8))
            await generator.close()
            return done

        done = asyncio.run(asyncio.wait_for(once(), 20))
    assert isinstance(generator, OpenAiGenerator)
    assert (generator.name, generator.context_tokens) == ("gpt", 2048)
    assert done.dollars == pytest.approx(1 * 1.0 + 3 * 2.0)
