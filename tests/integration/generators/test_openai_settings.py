"""What settings of the generator "openai" do at a server."""

import asyncio

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.workers.wiring.generators import make_generator
from ragbandit.workers.wiring.loading import check_generators
from tests.support.servers.openai_settings import settings


def test_prices_reach_the_generator():
    """A price of the file is charged, and the model's name and context go along."""
    with ScriptedServer(["Paris it is"]) as server:
        generator = make_generator(settings(base_url=server.url, prices={"gpt": [1e6, 2e6]}))

        async def once():
            done = await generator.complete(Request(prompt=Prompt(instructions="", body="Where?"), max_tokens=8))
            await generator.close()
            return done

        done = asyncio.run(asyncio.wait_for(once(), 20))
    assert isinstance(generator, OpenAiGenerator)
    assert (generator.name, generator.context_tokens) == ("gpt", 2048)
    assert done.dollars == pytest.approx(1 * 1.0 + 3 * 2.0)


def test_the_server_is_asked_where_that_is_allowed():
    """With the probe on the server is asked by who may fetch, and by nobody else."""
    with ScriptedServer([Reply(status=404, text="no such model")]) as server:
        given = Settings(generator=settings(base_url=server.url, probe=True, retries=0).model_dump())
        check_generators(given, fetch=False)
        assert server.requests == []
        with pytest.raises(ConfigError, match="404"):
            check_generators(given, fetch=True)
