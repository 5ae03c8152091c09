"""What a model in the process gives out while it writes."""

import asyncio

import pytest

from ragbandit.additions.local_models.generator import LocalGenerator
from ragbandit.strategies.base import Prompt, Request
from ragbandit.testing.doubles import STREAM_CHECKS
from tests.support.tiny_models import tiny_writer

pytestmark = pytest.mark.timeout(120)


def tiny():
    return LocalGenerator(tiny_writer("llama"), device="cpu", precision="float32", threads=1)


@pytest.mark.parametrize("check", STREAM_CHECKS, ids=lambda check: check.__name__)
def test_local_keeps_the_contract(check):
    """A model in the process, here one of random weights, gives out what it returns."""
    check(lambda _text: tiny())


def test_a_slow_reader_does_not_hold_up_the_texts_beside():
    """While one reader sleeps, another call is answered; the sleeper then has the rest at once."""

    async def run():
        generator = tiny()
        reading, go_on, texts = asyncio.Event(), asyncio.Event(), []

        async def sink(text):
            texts.append(text)
            reading.set()
            await go_on.wait()

        prompt = Prompt(instructions="", body="Tell me about the sea.")
        slow = asyncio.create_task(generator.complete(Request(prompt=prompt, max_tokens=24, sink=sink)))
        await reading.wait()
        other = await generator.complete(Request(prompt=prompt, max_tokens=30))
        go_on.set()
        done = await slow
        assert done.text.startswith(texts[-1])
        assert other.text.startswith(done.text)
        await generator.close()

    asyncio.run(asyncio.wait_for(run(), 100))
