"""One call of the generator "openai" to a scripted server, in a loop of its own."""

import asyncio
import time

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.chat_generator import ChatGenerator

CAPITAL = Prompt(instructions="Answer shortly.", body="What is the capital of France?")


def ask(
    server, prompt=CAPITAL, *, model="gpt", max_tokens=24, deadline_s=None, context_tokens=8192, request=None, **options
):
    """(completion or error, seconds) of one call."""

    async def call():
        options.setdefault("base_url", server.url)
        generator = ChatGenerator(model, options=OpenAiOptions(**options), context_tokens=context_tokens)
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        began = time.monotonic()
        try:
            found = await generator.complete(
                Request(prompt=prompt, max_tokens=max_tokens, deadline=deadline, **(request or {}))
            )
        except ArmFailed as error:
            found = error
        finally:
            seconds = time.monotonic() - began
            await generator.close()
        return found, seconds

    return asyncio.run(asyncio.wait_for(call(), 30))


def sent(server, number=0):
    return server.requests[number].body


def wait_until(condition, *, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
